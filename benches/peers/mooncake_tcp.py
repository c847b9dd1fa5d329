"""Mooncake Transfer Engine over TCP, by its Python API (package mooncake-transfer-engine-non-cuda)."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import common  # noqa: E402

os.environ.setdefault("MC_TCP_BIND_ADDRESS", "127.0.0.1")
os.environ.setdefault("MC_FORCE_TCP", "1")
os.environ.setdefault("GLOG_minloglevel", "1")


def engine():
    from mooncake.engine import TransferEngine
    it = TransferEngine()
    if it.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        raise RuntimeError("initialize")
    return it


def target():
    it, buffer = engine(), common.Buffer(2)
    if it.register_memory(buffer.base, buffer.bytes) != 0:
        raise RuntimeError("register_memory")
    common.serve({"name": "127.0.0.1:%d" % it.get_rpc_port(), "base": buffer.base})


def main():
    if "--target" in sys.argv:
        return target()
    far = common.Target(__file__)
    it, buffer = engine(), common.Buffer(1)
    if it.register_memory(buffer.base, buffer.bytes) != 0:
        raise RuntimeError("register_memory")
    name, base = far.hello["name"], far.hello["base"]

    def prepare(op, block, batch):
        here = common.offsets(buffer.base, block, batch)
        there = common.offsets(base, block, batch)
        lengths = [block] * batch
        one = it.transfer_sync_write if op == "write" else it.transfer_sync_read
        many = it.batch_transfer_sync_write if op == "write" else it.batch_transfer_sync_read

        def once():
            code = one(name, here[0], there[0], block) if batch == 1 else many(name, here, there, lengths)
            if code != 0:
                raise RuntimeError("transfer answered %d" % code)
        return once, lambda: None
    common.answer_cells(prepare, far)


main()
