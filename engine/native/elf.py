"""Whether a shared library is all there. The dynamic linker takes a file's word for how long it is,
and the process that maps one which is shorter dies by SIGBUS, beyond any error handling."""

import struct

_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<32xQ14xHH")
"""Of the file (``Elf64_Ehdr``): where the list of segments begins, bytes of an entry, and how many
there are."""
_SEGMENT = struct.Struct("<I4xQ16xQ")
"""The beginning of ``Elf64_Phdr``: type, offset, bytes in the file."""
_LOADED = 1


def is_cut_short(content: bytes) -> bool:
    """Whether segments that would be mapped lie beyond its end; False for what is no library of 64
    bits, which the linker itself refuses."""
    if not content.startswith(_ELF64_LITTLE_ENDIAN):
        return False
    try:
        begin, entry_bytes, num_segments = _HEADER.unpack_from(content)
        segments = [
            _SEGMENT.unpack_from(content, begin + index * entry_bytes)
            for index in range(num_segments)
        ]
    except struct.error:
        return True
    return any(
        offset + num_bytes > len(content) for kind, offset, num_bytes in segments if kind == _LOADED
    )
