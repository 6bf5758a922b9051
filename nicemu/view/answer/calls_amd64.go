package answer

import "golang.org/x/sys/unix"

const arch = unix.AUDIT_ARCH_X86_64

var calls = map[uint32]call{
	unix.SYS_OPEN:       {open, -1, 0, 1, -1},
	unix.SYS_OPENAT:     {open, 0, 1, 2, -1},
	unix.SYS_OPENAT2:    {open2, 0, 1, 2, -1},
	unix.SYS_STAT:       {stat, -1, 0, 1, -1},
	unix.SYS_LSTAT:      {stat, -1, 0, 1, -1},
	unix.SYS_NEWFSTATAT: {stat, 0, 1, 2, -1},
	unix.SYS_STATX:      {statx, 0, 1, 3, 4},
	unix.SYS_ACCESS:     {access, -1, 0, 1, -1},
	unix.SYS_FACCESSAT:  {access, 0, 1, 2, -1},
	unix.SYS_FACCESSAT2: {access, 0, 1, 2, -1},
	unix.SYS_READLINK:   {readlink, -1, 0, 1, 2},
	unix.SYS_READLINKAT: {readlink, 0, 1, 2, 3},
	unix.SYS_GETXATTR:   {xattr, -1, 0, -1, -1},
	unix.SYS_LGETXATTR:  {xattr, -1, 0, -1, -1},
	unix.SYS_LISTXATTR:  {xattr, -1, 0, -1, -1},
	unix.SYS_LLISTXATTR: {xattr, -1, 0, -1, -1},
}
