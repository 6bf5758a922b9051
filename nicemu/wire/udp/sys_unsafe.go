package udp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// rawAddr is a struct sockaddr_in or sockaddr_in6 and its length.
type rawAddr struct {
	b [unix.SizeofSockaddrInet6]byte
	n uint32
}

func (r *rawAddr) set(a netip.Addr, port uint16, scope uint32) {
	*r = rawAddr{}
	binary.BigEndian.PutUint16(r.b[2:], port)
	if a.Is4() {
		r.n = unix.SizeofSockaddrInet4
		binary.NativeEndian.PutUint16(r.b[:], unix.AF_INET)
		x := a.As4()
		copy(r.b[4:], x[:])
		return
	}
	r.n = unix.SizeofSockaddrInet6
	binary.NativeEndian.PutUint16(r.b[:], unix.AF_INET6)
	x := a.As16()
	copy(r.b[8:], x[:])
	binary.NativeEndian.PutUint32(r.b[24:], scope)
}

func (r *rawAddr) setPort(port uint16) {
	binary.BigEndian.PutUint16(r.b[2:], port)
	// What the kernel wrote may lack a length, and has no meaning beyond it.
	if r.n = unix.SizeofSockaddrInet4; binary.NativeEndian.Uint16(r.b[:]) == unix.AF_INET6 {
		r.n = unix.SizeofSockaddrInet6
	}
	clear(r.b[r.n:])
}

func (r *rawAddr) addrPort() netip.AddrPort {
	port := binary.BigEndian.Uint16(r.b[2:])
	if binary.NativeEndian.Uint16(r.b[:]) == unix.AF_INET6 {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(r.b[8:24])), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(r.b[4:8])), port)
}

// rawSockaddr also finds the interface of a link-local address.
func rawSockaddr(to netip.AddrPort) (rawAddr, error) {
	scope, err := zoneIndex(to.Addr().Zone())
	var r rawAddr
	r.set(to.Addr(), to.Port(), scope)
	return r, err
}

func zoneIndex(zone string) (uint32, error) {
	if zone == "" {
		return 0, nil
	}
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index), nil
	}
	n, err := strconv.ParseUint(zone, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("no interface %q", zone)
	}
	return uint32(n), nil
}

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	scope, _ := zoneIndex(ap.Addr().Zone()) // bind fails where it is wrong
	return &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16(), ZoneId: scope}
}

func localPort(fd int) (uint16, error) {
	sa, err := unix.Getsockname(fd)
	switch s := sa.(type) {
	case *unix.SockaddrInet4:
		return uint16(s.Port), nil
	case *unix.SockaddrInet6:
		return uint16(s.Port), nil
	}
	return 0, err
}

// sendmmsg and recvmmsg use raw calls: on non-blocking sockets they cannot block (host-trials.md, rule 7b).
func sendmmsg(fd int, m []mmsghdr) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

func recvmmsg(fd int, m []mmsghdr) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&m[0])), uintptr(len(m)), unix.MSG_DONTWAIT, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

func bytesOf(p *byte, n int) []byte { return unsafe.Slice(p, n) }

// socketDrops is how many datagrams the kernel dropped because the socket's buffer was full.
func socketDrops(fd int) uint64 {
	const drops = 8 // SK_MEMINFO_DROPS
	var info [9]uint32
	n := uint32(unsafe.Sizeof(info))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return 0
	}
	return uint64(info[drops])
}
