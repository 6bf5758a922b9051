//go:build dpdk

package wire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/yerden/go-dpdk/ethdev"

	"github.com/metaroce/metaroce/daemon/ether"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/refimpl/dpdkx"
)

// What is wrong with a wire, for who chooses an exit code.
var (
	ErrNoDevice = errors.New("no such device")
	ErrURL      = errors.New("no wire of DPDK")
)

var pciAddress = regexp.MustCompile(`^([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$`)

// IsPCI reports whether a wire needs EAL to look at PCI: it is a device's address, or the number of a port that EAL found.
func IsPCI(url string) bool {
	what := strings.TrimPrefix(url, "dpdk:")
	name, _, _ := strings.Cut(what, ",")
	_, err := strconv.Atoi(what)
	return err == nil || pciAddress.MatchString(name)
}

// Check says what is wrong with a URL before anything is started.
func Check(url string) error {
	what, ok := strings.CutPrefix(url, "dpdk:")
	if !ok || what == "" {
		return fmt.Errorf("%w: %q; want dpdk:PORT, dpdk:PCI-ADDRESS or dpdk:VDEV such as dpdk:net_memif0,role=server,socket=/tmp/plane0.sock", ErrURL, url)
	}
	return nil
}

// Open takes the port of a wire, making the device where EAL has not made it yet, and starts it.
func Open(url string, o Options) (*Port, error) {
	if err := Check(url); err != nil {
		return nil, err
	}
	if o.MTU == 0 {
		o.MTU = defaultMTU
	}
	if o.PacketMax == 0 {
		o.PacketMax = o.MTU - ether.IPv6Len - ether.UDPLen
	}
	if o.MTU < mtuMin || o.MTU > mtuMax || o.PacketMax < 1 || o.PacketMax > o.MTU-ether.IPv4Len-ether.UDPLen {
		return nil, fmt.Errorf("%s: an MTU of %d with packets of %d bytes; MTUs are %d to %d", url, o.MTU, o.PacketMax, mtuMin, mtuMax)
	}
	if o.Memory.mtu < o.MTU {
		return nil, fmt.Errorf("%s: an MTU of %d, and the buffers are for %d", url, o.MTU, o.Memory.mtu)
	}
	p := &Port{mem: o.Memory, mtu: o.MTU, busy: o.Busy}
	p.caps = device.PortCaps{Name: url, Kind: "dpdk", PacketMax: o.PacketMax, TimerNoise: mono.Or(o.Noise, timerNoise), EthernetOK: true}
	if err := p.find(strings.TrimPrefix(url, "dpdk:"), o); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	if err := p.start(o); err != nil {
		if p.turn != nil {
			p.turn.Close(true)
		}
		p.id.Close()
		p.kernel.close()
		removeSockets(p.files)
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return p, nil
}

// find finds or makes the device.
func (p *Port) find(what string, o Options) error {
	if n, err := strconv.ParseUint(what, 10, 16); err == nil {
		p.id = ethdev.Port(n)
		if !p.id.IsValid() {
			return fmt.Errorf("%w: EAL found %d ports", ErrNoDevice, len(ethdev.ValidPorts()))
		}
		return nil
	}
	p.name, _, _ = strings.Cut(what, ",")
	id, err := ethdev.GetPortByName(p.name)
	if err == nil { // EAL made it: --vdev, -a
		p.id = id
		return nil
	}
	if pciAddress.MatchString(p.name) && strings.Count(p.name, ":") == 1 {
		if id, err = ethdev.GetPortByName("0000:" + p.name); err == nil {
			p.id = id
			return nil
		}
	}
	if what, err = p.completeVdev(what, o); err != nil {
		return err
	}
	said, err := dpdkx.Heard(os.Stderr, func() error { return dpdkx.Attach(what) })
	if err != nil {
		removeSockets(p.files)
		return attachError(p.name, firstLine(said), err)
	}
	if p.id, err = ethdev.GetPortByName(p.name); err != nil {
		removeSockets(p.files)
		return fmt.Errorf("%w: the driver took %q and made no port of it (%s)", ErrNoDevice, what, firstLine(said))
	}
	return nil
}

func attachError(name, said string, err error) error {
	switch {
	case errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EFAULT): // the last: a name of no driver
		return fmt.Errorf("%w: no driver takes %q (%s); is its name right, and its driver loaded? `-- -d FOLDER` names drivers", ErrNoDevice, name, said)
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.Errno(1)): // 1: drivers that return -1 for anything
		return fmt.Errorf("%w: its driver refuses %q: %s", ErrNoDevice, name, said)
	}
	return fmt.Errorf("%s: %w: %s", name, err, said)
}

// firstLine is what a driver says first: the rest follows from it.
func firstLine(said string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(said), "\n")
	if line == "" {
		return "it says nothing"
	}
	return line
}

// completeVdev adds to a driver's arguments what it needs here, and clears away what a daemon that died left behind.
func (p *Port) completeVdev(what string, o Options) (string, error) {
	args := map[string]string{}
	for _, kv := range strings.Split(what, ",")[1:] {
		k, v, _ := strings.Cut(kv, "=")
		args[k] = v
	}
	switch {
	case strings.HasPrefix(what, "net_memif"):
		return p.completeMemif(what, args, o)
	case strings.HasPrefix(what, "net_af_packet") && args["framesz"] == "" && args["blocksz"] == "":
		// A frame of the ring as long as our buffers, since the driver takes no longer ones; a block as many as fill whole pages,
		// since it takes frames to follow each other without gaps.
		each := os.Getpagesize() / roomUnit
		what += fmt.Sprintf(",framesz=%d,blocksz=%d,framecnt=%d", p.mem.pool.Room(), p.mem.pool.Room()*each, (ringDefault/2+each-1)/each*each)
	}
	return what, nil
}

func (p *Port) completeMemif(what string, args map[string]string, o Options) (string, error) {
	socket := args["socket"]
	if args["bsize"] == "" { // a frame a buffer: chains of small ones are slower
		what += fmt.Sprintf(",bsize=%d", (o.MTU+ether.HeadLen+2*ether.VLANLen+127)&^63)
	}
	if strings.HasPrefix(socket, "/") && args["socket-abstract"] == "" {
		what += ",socket-abstract=no"
	}
	if isClient(args["role"]) {
		p.redial = &redial{socket: socket}
	}
	if !strings.HasPrefix(socket, "/") || !isServer(args["role"]) || args["socket-abstract"] == "yes" {
		return what, nil
	}
	if err := clearStale(socket, o.Note); err != nil {
		return "", err
	}
	sockets[socket]++
	p.files = append(p.files, socket)
	return what, nil
}

func isServer(role string) bool { return role == "server" || role == "master" }

func isClient(role string) bool { return role == "client" || role == "slave" || role == "" } // the last: memif's default

// sockets are those of memif servers in this process, with how many ports listen on each: several may share one.
var sockets = map[string]int{}

// clearStale removes a socket that nobody listens on: the driver would find its address taken, and make no port.
func clearStale(path string, note func(string)) error {
	fi, err := os.Lstat(path)
	if err != nil || sockets[path] > 0 {
		return nil
	}
	if fi.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s is there and is no socket", path)
	}
	c, err := net.DialTimeout("unixpacket", path, time.Second)
	if err == nil {
		// Not closed before it has greeted: a driver that finds us gone while it greets ends its process (DPDK 22.11).
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = c.Read(make([]byte, 256))
		_ = c.Close()
		return fmt.Errorf("another process serves %s", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("a socket that nobody listens on: %w", err)
	}
	if note != nil {
		note(fmt.Sprintf("removed %s, which nobody listened on", path))
	}
	return nil
}

// removeSockets takes away the sockets that no port of ours listens on any more.
func removeSockets(paths []string) {
	for _, path := range paths {
		if sockets[path]--; sockets[path] <= 0 {
			delete(sockets, path)
			os.Remove(path)
		}
	}
}

// start configures the port and starts it.
func (p *Port) start(o Options) error {
	var info ethdev.DevInfo
	if err := p.id.InfoGet(&info); err != nil {
		return err
	}
	p.off = dpdkx.OffloadsOf(&info)
	rx := ethdev.RxMode{Offloads: p.off.Rx()}
	if fits := uint32(info.MaxMTU()) >= uint32(o.MTU) && info.MaxRxPktLen() >= uint32(o.MTU+ether.HeadLen); fits {
		rx.MTU = uint32(o.MTU)
	}
	queues, opts := p.queues(&info, o, &rx)
	opts = append(opts, ethdev.OptRxMode(rx), ethdev.OptTxMode(ethdev.TxMode{Offloads: p.off.Tx()}))
	if err := p.id.DevConfigure(uint16(queues), uint16(queues), opts...); err != nil {
		return err
	}
	if err := p.setMTU(&info, rx.MTU != 0); err != nil {
		return err
	}
	p.kernel = newBeneath(info.DriverName(), dpdkx.IfIndex(&info))
	nrx, ntx := dpdkx.Descriptors(&info, orRing(o.RxRing), orRing(o.TxRing))
	socket := ethdev.OptSocket(p.id.SocketID())
	for q := range uint16(queues) {
		if err := p.id.RxqSetup(q, nrx, p.mem.pool.Mempool(), socket); err != nil {
			return err
		}
		if err := p.id.TxqSetup(q, ntx, socket); err != nil {
			return err
		}
	}
	if p.redial == nil {
		if err := p.id.Start(); err != nil {
			return err
		}
	}
	if strings.HasPrefix(info.DriverName(), "net_memif") {
		p.turn = dpdkx.NewTurn(p.id)
	}
	_ = dpdkx.AllMulticast(p.id) // what filters nothing says that it cannot
	_ = dpdkx.Watch(p.id)        // likewise, what cannot be taken away
	if err := p.address(o, info.DriverName()); err != nil {
		return err
	}
	if o.Shards > 1 {
		if err := p.lead(info.DriverName(), o.Shards, queues); err != nil {
			return err
		}
	} else {
		p.q = dpdkx.NewQueue(p.id, 0, p.mem.pool)
	}
	p.near.Init(p.near.MAC, o.MTU, p.control)
	if l := dpdkx.LinkOf(p.id); l.Up && !strings.HasPrefix(info.DriverName(), "net_") { // virtual links claim any speed
		p.caps.RateBps = l.Bps
	}
	if p.redial != nil {
		p.redial.start(p.turn)
	}
	return nil
}

// anyLength lists drivers whose frames may be longer than what they say of themselves: they only move memory, or have frames
// of a size that they are told.
var anyLength = []string{"net_memif", "net_ring", "net_null", "net_af_packet", "net_af_xdp"}

// setMTU sets the port's MTU where that did not do with its configuration, and looks at that of the kernel's interface below.
func (p *Port) setMTU(info *ethdev.DevInfo, done bool) error {
	driver := info.DriverName()
	if !done && !slices.Contains(anyLength, driver) {
		if err := p.id.SetMTU(uint16(p.mtu)); err != nil && !errors.Is(err, syscall.ENOTSUP) {
			return fmt.Errorf("%s does not take an MTU of %d; --mtu %d", driver, p.mtu, min(int(info.MaxMTU()), int(info.MaxRxPktLen())-ether.HeadLen-2*ether.VLANLen))
		}
	}
	name := dpdkx.Interface(info)
	if name == "" {
		return nil
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	switch has := link.Attrs().MTU; {
	case has >= p.mtu:
		return nil
	case driver != "net_tap": // somebody else's, who knows what it is for
		return fmt.Errorf("%s has an MTU of %d and the plane one of %d; `ip link set %s mtu %d`, or --mtu %d", name, has, p.mtu, name, p.mtu, has)
	}
	if err := netlink.LinkSetMTU(link, p.mtu); err != nil {
		return fmt.Errorf("interface %s: MTU %d: %w", name, p.mtu, err)
	}
	return nil
}

func orRing(n uint16) uint16 {
	if n == 0 {
		return ringDefault
	}
	return n
}

// address is the port's own, or one of ours where it has none. A TAP has two ends: its own address is that of the kernel's, and
// a bridge that the TAP is attached to would take frames to it for the machine's.
func (p *Port) address(o Options, driver string) error {
	var mac ethdev.MACAddr
	if err := p.id.MACAddrGet(&mac); err != nil {
		return err
	}
	p.near.MAC = ether.MAC(mac.HardwareAddr())
	if p.near.MAC != (ether.MAC{}) && driver != "net_tap" {
		return nil
	}
	p.near.MAC = o.MAC
	return hear(p.id, o.MAC, driver)
}

// unfiltered lists drivers that receive whatever the address, or did in some release.
var unfiltered = []string{"net_memif", "net_ring", "net_null", "net_tap"}

// hear makes a port receive frames to an address that is not its own.
func hear(id ethdev.Port, mac [6]byte, driver string) error {
	if err := dpdkx.AddMAC(id, mac); err != nil && !slices.Contains(unfiltered, driver) {
		return fmt.Errorf("%s: %w", driver, err)
	}
	return nil
}
