"""For tests of compcache and of stores by others: a fake compiler, fault wrappers, and the contract suite of a store.

::

    from compcache.testing.store_contract import StoreContract

    class TestMyStore(StoreContract):
        def make(self, tmp_path):
            return MyStore(tmp_path)

``store_contract`` needs pytest; the rest does not.
"""
