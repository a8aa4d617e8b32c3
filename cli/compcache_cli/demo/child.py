"""The process that one start runs: makes an LLM, says when it was ready, generates greedily, writes JSON.

Run as a file: ``python child.py REQUEST.json ANSWER.json``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Times are Unix times in seconds, so that the parent can count from before the interpreter started."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        request["model"],
        load_format="dummy",
        dtype=request["dtype"],
        max_model_len=256,
        max_num_seqs=8,
        seed=0,
        disable_log_stats=True,
        **request["options"],
    )
    ready = time.time()
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    answers = llm.generate(request["prompts"], sampling, use_tqdm=False)
    tokens = [list(answer.outputs[0].token_ids) for answer in answers]
    return {"ready": ready, "tokens": tokens}


if __name__ == "__main__":
    answer = main(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(answer))
