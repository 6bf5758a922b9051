// Package udp is the wire for whom may not make network interfaces: kernel UDP sockets, IPv4 or IPv6. A datagram holds
// BTH … ICRC exactly as a RoCEv2 packet does, so that it crosses real networks and clouds.
//
// A plane has one socket that receives (port 4791 unless the URL says otherwise) and eight that send for each of the
// NIC's addresses, on the ports behind it: the switch sees eight flows (the entropy), the receiver sees from the port
// which of the NIC's addresses a packet came from. Who the ports belong to is in the peer table (SetPeer). An address
// that is not in the table is taken for a UDP address itself, as in plain RoCEv2.
//
// A sent packet's way (tx.go): packets of a burst with one destination, socket and length become one datagram train
// (UDP_SEGMENT) where the kernel can; one sendmmsg for each run of one socket. A received one's (rx.go): recvmmsg,
// trains taken apart where they lie. Frames of the host port travel inside (tunnel.go).
package udp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/ether/groups"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/nicemu/wire/train"
)

const (
	// DefaultPort is that of RoCEv2.
	DefaultPort = 4791
	// DefaultPacketMax holds 4096 bytes of payload with the largest overhead of the protocol.
	DefaultPacketMax = 4096 + 124
	// Sockets is how many flows a plane shows the network for each address of the NIC.
	Sockets = 8
	// AddrsMax bounds the addresses that peers can tell apart; PortSpan is how many ports a plane uses from its own on.
	AddrsMax = 8
	PortSpan = 1 + Sockets*AddrsMax

	timerNoise = 2 * mono.Millisecond // of shared cores and the kernel's queues (protocol.md section 4)
	socketBuf  = 8 << 20
	outerMax   = 40 + 8 // IPv6 and UDP
	// What a packet that travels inside has around it.
	insideHeads = tunnelHead + etherLen + ipv6Len + udpLen + tunnelTail
)

// Options of a port. Zero values are the defaults.
type Options struct {
	PacketMax int  // largest BTH … ICRC; the MTU of the interface may make it smaller
	NoTrains  bool // neither UDP_SEGMENT nor UDP_GRO

	Noise *mono.Duration // the wire's timing noise; nil = that of shared cores
}

type drop uint8

const (
	dropTooLong drop = iota
	dropUnreachable
	dropFamily
	dropNoPeer
	dropAmbiguous
	dropShort
	dropTunnel
	dropTruncated
	dropSendError
	dropClosed
	drops
)

var dropNames = [drops]string{
	"too_long", "unreachable", "address_family", "no_peer", "ambiguous_source", "short", "bad_tunnel",
	"truncated", "send_error", "closed",
}

// Port is one plane over UDP. It implements device.Port.
type Port struct {
	caps    device.PortCaps
	local   netip.AddrPort
	ifname  string // the interface of the local address; "" when it is unspecified
	ifreq   *unix.Ifreq
	v6      bool
	rxFD    int
	sources [][Sockets]int    // by index of the NIC's address
	ports   [][Sockets]uint16 // where they are bound
	groups  groups.Set        // multicast groups that the NIC is in
	addrs   []netip.Addr
	peers   peers
	trains  bool
	// Longest datagram with a packet inside: the headers come on top of it.
	insideMax int
	closed    bool

	rx rxState
	tx txState

	stats device.PortStats
	drops [drops]uint64
}

var _ device.GroupPort = (*Port)(nil)

// ParseURL reads ADDR, ADDR:PORT or [ADDR6]:PORT, with or without udp: in front.
func ParseURL(url string) (netip.AddrPort, error) {
	s := strings.TrimPrefix(url, "udp:")
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a.Unmap(), DefaultPort), nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not udp:ADDR, udp:ADDR:PORT or udp:[ADDR6]:PORT", url)
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}

// Open makes the wire of one plane that receives at addr. Port 0 takes any free one.
func Open(addr netip.AddrPort, o Options) (*Port, error) {
	p := &Port{v6: addr.Addr().Is6(), rxFD: -1, local: addr, trains: !o.NoTrains}
	if err := p.open(o); err != nil {
		_ = p.Close() // the error that led here says more
		return nil, fmt.Errorf("udp:%v: %w", addr, err)
	}
	return p, nil
}

func (p *Port) open(o Options) error {
	mtu, err := p.findInterface()
	if err != nil {
		return err
	}
	if o.PacketMax == 0 {
		o.PacketMax = DefaultPacketMax
	}
	if p.rxFD, err = p.socket(p.local); err != nil {
		return hint(err, p.local)
	}
	port, err := localPort(p.rxFD)
	if err != nil {
		return err
	}
	p.local = netip.AddrPortFrom(p.local.Addr(), port)
	if err := p.receiveOptions(); err != nil {
		return err
	}
	if err := p.addSources(0); err != nil {
		return err
	}
	p.caps = device.PortCaps{
		Name: "udp:" + p.local.String(), Kind: "udp", PacketMax: min(o.PacketMax, mtu-outerMax),
		TimerNoise: mono.Or(o.Noise, timerNoise), EthernetOK: true,
	}
	p.insideMax = min(p.caps.PacketMax+insideHeads, mtu-outerMax, len(p.tx.tun.frame))
	if p.trains {
		p.caps.Burst = train.Burst
	}
	if p.caps.PacketMax < tunnelHead+tunnelTail+64 {
		return fmt.Errorf("an MTU of %d leaves %d bytes for packets", mtu, p.caps.PacketMax)
	}
	if p.ifname != "" {
		if p.ifreq, err = unix.NewIfreq(p.ifname); err != nil {
			return err
		}
	}
	p.peers.init()
	p.rx.init()
	p.tx.init(p.caps.PacketMax)
	return nil
}

// hint adds what helps to the errors that people meet.
func hint(err error, at netip.AddrPort) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("another program or plane has that port (a plane uses %d from its own on): %w", PortSpan, err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("this machine (or namespace) has no address %v: %w", at.Addr(), err)
	}
	return err
}

// findInterface finds whose address the plane has, and its MTU.
func (p *Port) findInterface() (mtu int, err error) {
	a := p.local.Addr()
	if a.IsUnspecified() {
		return 1500, nil
	}
	if a.IsLoopback() {
		p.ifname = "lo"
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return 0, err
	}
	for _, i := range ifs {
		if i.Name == p.ifname {
			return i.MTU, nil
		}
		list, err := i.Addrs()
		if err != nil {
			continue // it went away meanwhile
		}
		for _, x := range list {
			if n, ok := x.(*net.IPNet); ok {
				if ip, _ := netip.AddrFromSlice(n.IP); ip.Unmap() == a.WithZone("") {
					p.ifname = i.Name
					return i.MTU, nil
				}
			}
		}
	}
	return 0, hint(unix.EADDRNOTAVAIL, p.local)
}

// socket opens and binds a non-blocking socket.
func (p *Port) socket(at netip.AddrPort) (int, error) {
	family := unix.AF_INET
	if p.v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	//= MR-WIRE-004
	// DF: a packet that does not fit is counted here instead of being fragmented on the way.
	if p.v6 {
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO))
	} else {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(at))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	buffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
	return fd, nil
}

// buffer asks for a large socket buffer: beyond the machine's limit where we may, else up to it.
func buffer(fd, force, plain int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, socketBuf) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, socketBuf) // the default serves too
	}
}

func (p *Port) receiveOptions() error {
	buffer(p.rxFD, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	level, name := unix.IPPROTO_IP, unix.IP_RECVTOS
	if p.v6 {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS
	}
	if err := unix.SetsockoptInt(p.rxFD, level, name, 1); err != nil {
		return fmt.Errorf("receive TOS: %w", err)
	}
	if p.trains && unix.SetsockoptInt(p.rxFD, unix.SOL_UDP, unix.UDP_GRO, 1) != nil {
		p.trains = false // a kernel before 5.0
	}
	return nil
}

// addSources opens the sending sockets of one more address of the NIC, on the ports that peers expect them on. Where
// one is taken any other does: peers then tell us by our IP address alone.
func (p *Port) addSources(index int) error {
	var fds [Sockets]int
	var ports [Sockets]uint16
	for i := range fds {
		at := netip.AddrPortFrom(p.local.Addr(), sourcePort(p.local.Port(), index, i))
		fd, err := p.socket(at)
		if err != nil {
			fd, err = p.socket(netip.AddrPortFrom(p.local.Addr(), 0))
		}
		if err == nil {
			ports[i], err = localPort(fd)
		}
		if err != nil {
			for _, fd := range fds[:i] {
				unix.Close(fd)
			}
			return err
		}
		fds[i] = fd
	}
	p.sources, p.ports = append(p.sources, fds), append(p.ports, ports)
	return nil
}

// sourcePort is where a plane that receives at port sends from, for its NIC's address number index. 0 when there is
// no such port.
func sourcePort(port uint16, index, socket int) uint16 {
	n := int(port) + 1 + index*Sockets + socket
	if n > 65535 {
		return 0
	}
	return uint16(n)
}

// LocalAddr is where the plane receives.
func (p *Port) LocalAddr() netip.AddrPort { return p.local }

// Trains reports whether datagram trains are in use.
func (p *Port) Trains() bool { return p.trains }

// Caps implements device.Port.
func (p *Port) Caps() device.PortCaps { return p.caps }

// SetAddrs implements device.Port.
func (p *Port) SetAddrs(addrs []netip.Addr) {
	p.addrs = p.addrs[:0]
	for _, a := range addrs {
		p.addrs = append(p.addrs, a.Unmap())
	}
	for len(p.sources) < min(len(addrs), AddrsMax) {
		if p.addSources(len(p.sources)) != nil {
			return // out of descriptors: those there are serve all addresses
		}
	}
}

// SetSlots implements device.SlotPort: peers tell our addresses apart by their position.
func (p *Port) SetSlots(addrs []netip.Addr) { p.SetAddrs(addrs) }

// SetPeer says where a peer's plane receives, and the addresses of its NIC in their order there. It replaces what was
// known of to; no addresses removes it. Called on the device's goroutine.
func (p *Port) SetPeer(to netip.AddrPort, addrs ...netip.Addr) error {
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if to.Addr().Is6() != p.v6 {
		return fmt.Errorf("udp:%v: peer %v is of another address family", p.local, to)
	}
	name, err := rawSockaddr(to)
	if err != nil {
		return fmt.Errorf("udp:%v: peer %v: %w", p.local, to, err)
	}
	p.peers.set(to, name, addrs)
	return nil
}

// LinkUp asks whether the interface with our address is up and has a carrier.
func (p *Port) LinkUp() bool {
	if p.closed {
		return false
	}
	if p.ifname == "" {
		return true
	}
	err := unix.IoctlIfreq(p.rxFD, unix.SIOCGIFFLAGS, p.ifreq)
	flags := p.ifreq.Uint16()
	return err == nil && flags&(unix.IFF_UP|unix.IFF_RUNNING) == unix.IFF_UP|unix.IFF_RUNNING
}

// NextWake is now while a train is only half handed out, and soon while a full socket is to be tried again.
func (p *Port) NextWake() mono.Time {
	switch {
	case p.rx.pending():
		return p.rx.now
	case p.tx.held.N > 0:
		return p.rx.now.Add(retry)
	}
	return mono.Never
}

// FDs implements device.Port.
func (p *Port) FDs() []int { return []int{p.rxFD} }

// Stats implements device.Port.
func (p *Port) Stats() device.PortStats {
	s := p.stats
	s.Drops = map[string]uint64{}
	for i, n := range p.drops {
		if n > 0 {
			s.Drops[dropNames[i]] = n
		}
	}
	if n := socketDrops(p.rxFD); n > 0 {
		s.Drops["socket_full"] = n
	}
	return s
}

// Close implements device.Port.
func (p *Port) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	for _, fds := range p.sources {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	if p.rxFD >= 0 {
		unix.Close(p.rxFD)
	}
	return nil
}
