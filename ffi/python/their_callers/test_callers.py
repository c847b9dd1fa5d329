"""SGLang, LMCache and checkpoint-engine, of whose wheels the files that call Mooncake are run as they are, over polyrail."""

import pytest
from common import End

PAGES_THERE = [3, 4, 5, 9, 200, 17]
PAGES_HERE = [100, 101, 102, 7, 0, 255]


@pytest.fixture
def ends():
    made = []

    def make(file, role, **environment):
        made.append(End(file, role, **environment))
        return made[-1]

    yield make
    for end in made:
        end.kill()


def is_ours(kind):
    """That it is our engine, called from these files of theirs."""
    return kind[0] == "polyrail.mooncake._engine" and len(kind[-1]) > 0


def test_sglang_sends_pages_from_prefill_to_decode(ends):
    prefill, decode = ends("sglang_caller.py", "prefill"), ends("sglang_caller.py", "decode")
    assert is_ours(prefill.kind()) and prefill.kind()[1] is None
    session = decode.session()
    pointers, aux = decode.pointers()
    assert prefill.send(session, pointers, PAGES_HERE, PAGES_THERE) == 0
    assert decode.crcs(PAGES_THERE) == prefill.crcs(PAGES_HERE)
    assert prefill.send_aux(session, aux, 3, 11) == 0 and decode.aux(11) == prefill.aux(3)
    # A decode process that is stopped, and one that has gone.
    prefill.blacklist(session)
    decode.stop()
    assert prefill.probe() == [session]
    decode.go_on()
    while prefill.probe():
        pass
    assert prefill.send_one(session, pointers[0]) == 0
    decode.kill()
    assert prefill.send(session, pointers, PAGES_HERE, PAGES_THERE) == -1
    prefill.blacklist(session)
    assert prefill.probe() == [session]
    # And its successor.
    port = session.rpartition(":")[2]
    second = ends("sglang_caller.py", "decode", MC_MIN_RPC_PORT=port, MC_MAX_RPC_PORT=port)
    assert second.session() == session
    assert prefill.probe() == []
    pointers, _ = second.pointers()
    assert prefill.send(session, pointers, PAGES_HERE, PAGES_THERE) == 0
    assert second.crcs(PAGES_THERE) == prefill.crcs(PAGES_HERE)
    prefill.end()


def test_lmcache_reads_pages_and_knows_when_all_have_come(ends):
    source, reader = ends("lmcache_caller.py", "source"), ends("lmcache_caller.py", "reader")
    assert is_ours(reader.kind())
    # A small page first, then large ones: of theirs, the first one's end is the batch's.
    sizes = [4096, *[1 << 20] * 60]
    here = [[index << 20, size] for index, size in enumerate(sizes)]
    there = [[index << 20, size] for index, size in zip(range(60, -1, -1), sizes, strict=True)]
    assert reader.read(source.url(), here, there) == [True] * 61
    assert all(reader.crc(*one) == source.crc(*other) for one, other in zip(here, there, strict=True))
    url = source.url()
    source.kill()
    assert "Failed to submit" in reader.read(url, here, there)
    reader.end()


def test_checkpoint_engine_reads_named_tensors(ends):
    trainer, receiver = ends("checkpoint_caller.py", "trainer"), ends("checkpoint_caller.py", "receiver")
    assert is_ours(receiver.kind())
    for _ in range(2):
        trainer.register()
        receiver.register()
        assert receiver.read(trainer.address(), *trainer.pointers()) is None
        assert receiver.crcs() == trainer.crcs()
        assert trainer.unregister() == receiver.unregister() == 4
    receiver.register()
    assert receiver.read(trainer.address(), *trainer.pointers()) == "it asserts that the answer is 0"
