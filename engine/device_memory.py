"""How much memory an accelerator has free."""

import torch


def free_device_bytes(device_index: int) -> int | None:
    """As the driver says, after this process has opened it; None if there is no such device."""
    if not torch.cuda.is_available() or device_index >= torch.cuda.device_count():
        return None
    free_bytes, _total_bytes = torch.cuda.mem_get_info(device_index)
    return int(free_bytes)
