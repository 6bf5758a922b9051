package tap

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/songgao/water"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/ether"
)

// Offload flags of TUNSETOFFLOAD that x/sys does not name yet (linux/if_tun.h).
const (
	tunFCSUM = 0x01
	tunFUSO4 = 0x20
	tunFUSO6 = 0x40
)

const (
	vnetHdrLen = 10 // struct virtio_net_hdr
	// readMax is the longest that one read can give: a super-packet.
	readMax = vnetHdrLen + ether.HeadLen + 2*ether.VLANLen + 65535 + 40
)

// Device is an open TAP, one frame per call or, with the virtio header, one super-packet.
type Device struct {
	fd     int
	name   string
	vnet   bool // frames begin with a virtio_net_hdr
	trains bool // and may be super-packets of UDP
	poll   []unix.PollFd
	zero   [vnetHdrLen]byte
	iovs   [2]unix.Iovec
	// writev is the system call; a test puts a kernel without segmentation here.
	writev func(fd int, v []unix.Iovec) unix.Errno
}

// DeviceOptions say how a TAP is to be.
type DeviceOptions struct {
	Plain   bool   // no virtio header, so no super-packets
	MTU     int    // of the interface; 0 = as it is
	Bridge  string // to attach it to
	MAC     [6]byte
	Persist bool // the interface stays when the descriptor is closed
}

// OpenDevice makes the TAP, or attaches to one that an administrator made, in the calling thread's network namespace,
// and sets it up.
func OpenDevice(name string, o DeviceOptions) (*Device, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ || strings.ContainsAny(name, "/ \t") {
		return nil, fmt.Errorf("%q is no name of an interface (1 to %d characters)", name, unix.IFNAMSIZ-1)
	}
	made := false
	if _, err := net.InterfaceByName(name); err != nil {
		if err := makePersistent(name); err != nil {
			return nil, err
		}
		made = true
	}
	fd, err := attach(name, !o.Plain)
	if err != nil {
		return nil, err
	}
	if made && !o.Persist {
		// From now on the interface lives as long as the descriptor.
		if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0); err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("%s: TUNSETPERSIST: %w", name, err)
		}
	}
	d, err := NewDevice(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	if err := d.setUp(o, made); err != nil {
		_ = d.Close() // the error that led here says more
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}

// makePersistent has water make the interface; the data path then attaches to it with flags that water does not know.
func makePersistent(name string) error {
	c := water.Config{DeviceType: water.TAP}
	c.Name, c.Persist = name, true
	w, err := water.New(c)
	if err != nil {
		return explain(name, err)
	}
	return w.Close()
}

// attach opens the TAP. A TAP that was made with multi_queue only takes the same flag; one queue of it is used.
func attach(name string, vnet bool) (int, error) {
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if vnet {
		flags |= unix.IFF_VNET_HDR
	}
	var first error
	for _, extra := range []uint16{0, unix.IFF_MULTI_QUEUE} {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, explain(name, err)
		}
		req, err := unix.NewIfreq(name)
		if err == nil {
			req.SetUint16(flags | extra)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err == nil {
			return fd, nil
		}
		unix.Close(fd)
		if first == nil {
			first = err
		}
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return -1, explain(name, first)
}

// explain says what the errors that people meet mean.
func explain(name string, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("no /dev/net/tun: load the tun module, or give the container --device /dev/net/tun: %w", err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("/dev/net/tun may not be opened by this user: %w; run as root, or have an administrator run: chmod 666 /dev/net/tun", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("no right to the TAP %s: needs CAP_NET_ADMIN here, or a TAP made for this user (ip tuntap add %s mode tap user NAME): %w", name, name, err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("the TAP %s is in use by another program: %w", name, err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%s is no TAP (mode tun, or another kind of interface): %w", name, err)
	}
	return fmt.Errorf("TAP %s: %w", name, err)
}

// NewDevice takes an open TAP descriptor, perhaps made in another namespace, and owns it unless it returns an error.
func NewDevice(fd int) (*Device, error) {
	req, err := unix.NewIfreq("x") // the kernel fills in the name
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, req); err != nil {
		return nil, fmt.Errorf("descriptor %d is no TAP: %w", fd, err)
	}
	flags := req.Uint16()
	d := &Device{fd: fd, name: req.Name(), vnet: flags&unix.IFF_VNET_HDR != 0, writev: writevNow, poll: []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}}
	switch {
	case flags&unix.IFF_TAP == 0:
		return nil, fmt.Errorf("%s is a TUN, not a TAP (IFF_TAP is off)", d.name)
	case flags&unix.IFF_NO_PI == 0:
		return nil, fmt.Errorf("%s was opened with packet information (IFF_NO_PI is off)", d.name)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	if d.vnet {
		if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetHdrLen); err != nil {
			return nil, fmt.Errorf("%s: TUNSETVNETHDRSZ: %w", d.name, err)
		}
		// Left over from whoever had it before: without a word frames are whole and have their checksums.
		_ = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, 0)
	}
	return d, nil
}

// UseTrains asks for super-packets of UDP, and reports whether the kernel has them (6.2 and later).
func (d *Device) UseTrains() bool {
	d.trains = d.vnet && unix.IoctlSetInt(d.fd, unix.TUNSETOFFLOAD, tunFCSUM|tunFUSO4|tunFUSO6) == nil
	return d.trains
}

func (d *Device) setUp(o DeviceOptions, made bool) error {
	l, err := netlink.LinkByName(d.name)
	if err != nil {
		return err
	}
	if o.MTU != 0 && l.Attrs().MTU != o.MTU {
		if err := netlink.LinkSetMTU(l, o.MTU); err != nil {
			return fmt.Errorf("cannot set the MTU to %d: %w", o.MTU, err)
		}
	}
	if o.MAC != ([6]byte{}) {
		if err := netlink.LinkSetHardwareAddr(l, o.MAC[:]); err != nil {
			return fmt.Errorf("cannot set the MAC address: %w", err)
		}
	}
	if o.Bridge != "" {
		b, err := netlink.LinkByName(o.Bridge)
		if err != nil {
			return fmt.Errorf("bridge %s: %w (ip link add %s type bridge && ip link set %s up)", o.Bridge, err, o.Bridge, o.Bridge)
		}
		if err := netlink.LinkSetMaster(l, b); err != nil {
			return fmt.Errorf("cannot attach it to bridge %s: %w", o.Bridge, err)
		}
	}
	if l.Attrs().Flags&net.FlagUp != 0 && !made {
		return nil // an administrator's; we may lack the right, and need none
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("cannot set it up: %w", err)
	}
	return nil
}

// MTU asks for the interface's MTU. It works in the interface's namespace only.
func (d *Device) MTU() (int, error) {
	i, err := net.InterfaceByName(d.name)
	if err != nil {
		return 0, err
	}
	return i.MTU, nil
}

// MAC is the interface's address, which is that of the host's end.
func (d *Device) MAC() (mac [6]byte, err error) {
	var b [40]byte // struct ifreq: the address is behind the name and a family
	if err = ioctlBytes(d.fd, unix.SIOCGIFHWADDR, b[:]); err == nil {
		copy(mac[:], b[18:24])
	}
	return mac, err
}

// SetMAC changes the interface's address by its descriptor, so from any namespace.
func (d *Device) SetMAC(mac [6]byte) error {
	var b [40]byte
	b[16] = unix.ARPHRD_ETHER
	copy(b[18:], mac[:])
	if err := ioctlBytes(d.fd, unix.SIOCSIFHWADDR, b[:]); err != nil {
		return fmt.Errorf("%s: cannot set the MAC address: %w", d.name, err)
	}
	return nil
}

// Name is the interface's name at the time the device was opened.
func (d *Device) Name() string { return d.name }

// FD is the descriptor to wait on.
func (d *Device) FD() int { return d.fd }

// Up reports whether the interface exists and is up: the kernel lets a TAP be written only then.
func (d *Device) Up() bool {
	if d.fd < 0 {
		return false
	}
	d.poll[0].Revents = 0
	n, err := pollNow(d.poll)
	return err == 0 && n == 1 && d.poll[0].Revents&(unix.POLLOUT|unix.POLLERR|unix.POLLNVAL) == unix.POLLOUT
}

// ReadMax is how much place Read wants, so that no frame is ever cut.
const ReadMax = readMax

// Read takes one frame off the TAP and returns it with its virtio header, if frames have one. EAGAIN: there is none.
func (d *Device) Read(b []byte) (frame, vnet []byte, errno unix.Errno) {
	n, errno := readNow(d.fd, b)
	switch {
	case errno != 0:
		return nil, nil, errno
	case !d.vnet:
		return b[:n], nil, 0
	case n < vnetHdrLen:
		return nil, nil, 0
	}
	return b[vnetHdrLen:n], b[:vnetHdrLen], 0
}

// Write puts one whole frame on the TAP.
func (d *Device) Write(frame []byte) unix.Errno {
	v := d.iovs[:1]
	if d.vnet {
		d.iovs[0].Base, d.iovs[0].Len = &d.zero[0], vnetHdrLen
		v = d.iovs[:2]
	}
	v[len(v)-1].Base, v[len(v)-1].Len = &frame[0], uint64(len(frame))
	return d.writev(d.fd, v)
}

// Close closes the descriptor; an interface that is not persistent goes with it.
func (d *Device) Close() error {
	if d.fd < 0 {
		return nil
	}
	err := unix.Close(d.fd)
	d.fd = -1
	return err
}
