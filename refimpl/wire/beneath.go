//go:build dpdk

package wire

import (
	"slices"

	"golang.org/x/sys/unix"
)

// kernels lists drivers of ports that are interfaces of the kernel.
var kernels = []string{"net_tap", "net_af_packet", "net_af_xdp"}

// beneath is the kernel's interface that a port is one with. What its drivers say of it depends on the release: AF_PACKET's of
// 22.11 is always up, and that of a TAP stays as it was when the TAP is deleted (25.11). So the kernel is asked as well.
type beneath struct {
	fd    int
	index uint32
	req   *unix.Ifreq
}

// newBeneath is nil where there is no such interface.
func newBeneath(driver string, index uint32) *beneath {
	if index == 0 || !slices.Contains(kernels, driver) {
		return nil
	}
	req, err := unix.NewIfreq("")
	if err != nil {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return &beneath{fd, index, req}
}

// up reports whether the interface is there, in this network namespace, is up and has a carrier.
func (b *beneath) up() bool {
	if b == nil {
		return true
	}
	b.req.SetUint32(b.index)
	if unix.IoctlIfreq(b.fd, unix.SIOCGIFNAME, b.req) != nil || unix.IoctlIfreq(b.fd, unix.SIOCGIFFLAGS, b.req) != nil {
		return false
	}
	const both = unix.IFF_UP | unix.IFF_RUNNING
	return b.req.Uint16()&both == both
}

func (b *beneath) close() {
	if b != nil {
		unix.Close(b.fd)
	}
}
