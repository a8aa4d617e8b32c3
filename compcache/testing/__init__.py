"""For tests of compcache and of stores by others: contract suite, kill driver, faults, and a fake compiler.

``store_contract``: what any store must do, as a class of tests to inherit (needs pytest; the rest does not)::

    from compcache.testing.store_contract import StoreContract

    class TestMyStore(StoreContract):
        def make(self, tmp_path):
            return MyStore(tmp_path)

``kills``: a process is killed at every failpoint, the store reopened and checked::

    python -m compcache.testing.kills --store my_package:MyStore --kills 1000 an-empty-folder

``faults``: wrappers of a store that fail in one way each. ``filesystems``: a directory below which the calls to the
operating system fail as network mounts do. ``fake_compiler``: programs whose meaning is a function of their factors and
whose bytes never repeat, with the lookup, lease and publication of an adapter.
"""
