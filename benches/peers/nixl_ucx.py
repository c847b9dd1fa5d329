"""NIXL over UCX, and TCP if `UCX_TLS` does not say otherwise, by its Python API (package nixl-cu12). --no-progress: the initiator has no progress thread."""
import base64
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import common  # noqa: E402

os.environ.setdefault("UCX_TLS", "tcp,self")
os.environ.setdefault("UCX_NET_DEVICES", "lo")


def agent(name, progress):
    from nixl_cu12._api import nixl_agent, nixl_agent_config
    it = nixl_agent(name, nixl_agent_config(enable_prog_thread=progress, backends=[]))
    it.create_backend("UCX", {})
    return it


def target():
    it, buffer = agent("target", True), common.Buffer(2)
    it.register_memory([(buffer.base, buffer.bytes, 0, "")], "DRAM")
    metadata = base64.b64encode(it.get_agent_metadata()).decode()
    common.serve({"base": buffer.base, "metadata": metadata})


def main():
    if "--target" in sys.argv:
        return target()
    far = common.Target(__file__)
    it, buffer = agent("initiator", "--no-progress" not in sys.argv), common.Buffer(1)
    it.register_memory([(buffer.base, buffer.bytes, 0, "")], "DRAM")
    if not it.add_remote_agent(base64.b64decode(far.hello["metadata"])):
        raise RuntimeError("add_remote_agent")

    def prepare(op, block, batch):
        local = [(at, block, 0) for at in common.offsets(buffer.base, block, batch)]
        remote = [(at, block, 0) for at in common.offsets(far.hello["base"], block, batch)]
        handle = it.initialize_xfer(op.upper(), it.get_xfer_descs(local, "DRAM"),
                                    it.get_xfer_descs(remote, "DRAM"), "target")

        def once():
            state = it.transfer(handle)
            while state == "PROC":
                state = it.check_xfer_state(handle)
            if state != "DONE":
                raise RuntimeError("transfer ended " + state)
        return once, lambda: it.release_xfer_handle(handle)
    common.answer_cells(prepare, far)


main()
