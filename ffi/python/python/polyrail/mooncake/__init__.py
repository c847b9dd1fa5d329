"""`mooncake.engine` of Mooncake's wheel, over polyrail.

    from polyrail.mooncake import TransferEngine

It has the methods of `mooncake.engine.TransferEngine` 0.3.13.post1, with their arguments and answers. Both ends need it: it does not
speak Mooncake's protocol. `import polyrail.as_mooncake`, or POLYRAIL_AS_MOONCAKE=1 in the environment, lets
`import mooncake.engine` find it. docs/migrating-from-mooncake.md says what differs.
"""

from polyrail.mooncake._engine import Held, TransferEngine
from polyrail.mooncake._types import Read, TransferNotify, TransferOpcode, Write

SUPPORT_CUDA = False
SUPPORT_EFA = False
SUPPORT_HIP = False
SUPPORT_INTRA_NVLINK = False
SUPPORT_MNNVL = False
SUPPORT_MUSA = False

__all__ = [
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "Held",
    "Read",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
]
