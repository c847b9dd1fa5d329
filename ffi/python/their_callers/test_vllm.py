"""vLLM's connector, of whose wheel the files that call Mooncake are run as they are, over polyrail."""

import random

from test_callers import ends, is_ours

__all__ = ["ends"]


def test_vllm_sends_blocks_with_its_ten_threads(ends):
    prefill, decode = ends("vllm_caller.py", "prefill"), ends("vllm_caller.py", "decode")
    assert is_ours(prefill.kind())
    chance = random.Random(1)
    here, there = list(range(512)), list(range(512))
    chance.shuffle(here)
    chance.shuffle(there)
    part = lambda blocks, index: blocks[16 * index : 16 * index + 16]  # noqa: E731
    sent = []
    # Its pool makes a thread only when none is idle, so with fast sends it takes some turns until all ten are there.
    for turn in range(50):
        requests = [f"request{turn}-{index}" for index in range(32)]
        prefill.offer([[name, part(here, index)] for index, name in enumerate(requests)])
        answers = decode.pull(prefill.port(), [[name, part(there, index)] for index, name in enumerate(requests)])
        assert sorted(answers) == sorted([[name], None, None] for name in requests)
        assert decode.crcs(there) == prefill.crcs(here)
        sent += requests
        assert prefill.sent() == sorted(sent)
        if prefill.threads() == 10:
            break
    assert prefill.threads() == 10
    # Decode gives its memory back: nothing is written there, and prefill is told.
    session, base = decode.session(), decode.base()
    decode.unregister()
    assert prefill.send(session, base) == -1
    # A decode process that has gone.
    decode.kill()
    assert prefill.send(session, base) == -1
    second = ends("vllm_caller.py", "decode")
    prefill.offer([["again", part(here, 0)]])
    assert second.pull(prefill.port(), [["again", part(there, 0)]]) == [[["again"], None, None]]
    assert second.crcs(part(there, 0)) == prefill.crcs(part(here, 0))
