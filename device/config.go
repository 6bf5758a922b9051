package device

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"syscall"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/rocev2"
)

// Config describes a NIC.
type Config struct {
	Name      string       // HOST/mrN, unique in the daemon
	Dev       string       // mrN, what programs see
	GUID      uint64       // node GUID; 0: derived from Name and the first address
	Addrs     []netip.Addr // GID i is address i
	Ports     []Port       // one a plane
	HostPort  Port         // the host's own network interface, or nil
	Seed      uint64
	Secret    [32]byte // see metaroce.Config; all 0 = from the seed
	Instance  uint64   // differs at every start of the NIC, so that peers notice a restart
	Version   string   // shown as the firmware's
	Transport Policy   // how reliable connections travel
	// NewEngine makes the transport; nil takes the engines of package transport.
	NewEngine NewEngineFunc
	// Tune changes what these are made with, after the NIC has filled it in; what it leaves alone stays. For simulations.
	Tune Tuning
}

// Tuning changes the configurations of the engines; either may be nil.
type Tuning struct {
	MetaRoCE func(c *metaroce.Config)
	RoCEv2   func(c *rocev2.Config)
}

// What this NIC can do: limits of this implementation, each one a number that programs see.
const (
	vendorID = 0x4d52 // "MR"; no OUI of anybody
	partID   = 1
	hwVer    = 1

	maxQP       = 16384
	maxQPWR     = 16384   // entries of an SQ or RQ
	maxCQE      = 4194303 // so that entries, a power of two, are at most 2^22
	maxCQ       = 65536
	maxMR       = 262144
	maxPD       = 32768
	maxMW       = 65536
	maxDM       = 1024
	maxDMSize   = 16 << 20 // device memory of the NIC
	maxAH       = 65536
	maxSRQ      = 8192
	maxSRQWR    = 16384
	maxXRCD     = 1024
	maxAliases  = 4096 // programs that have one XRC_RECV QP open
	maxRdAtom   = 16
	maxMRSize   = 1 << 46
	maxMsgSize  = 1 << 31
	maxGroups   = 8192 // multicast groups of the NIC
	maxQPsGroup = 1024 // QPs in a group
	maxGroupsQP = 256  // groups of a QP
	maxChannel  = 4096 // of a context: each is a descriptor

	// What programs may make the daemon hold for their send queues: a queue longer than sqHeld waits in the program's
	// own memory, and the sum is bounded.
	sqHeld      = 4096
	sqEntry     = 256 // bytes of a request in the engine, without its list
	sqBytesMost = 1 << 30

	pageSizeCap    = 0xfffffffffffff000
	compVectors    = 4
	pkeyDefault    = 0xffff
	linkEthernet   = 2
	portActive     = 4
	portDown       = 1
	physLinkUp     = 5
	physDisabled   = 3
	ipBasedGIDs    = 1 << 26 // IBV_PORT_IP_BASED_GIDS
	reinitPortCaps = 1 << 16 // IBV_PORT_CM_SUP

	// device_cap_flags of enum ibv_device_cap_flags.
	capBadPkeyCntr  = 1 << 1
	capCurrQPState  = 1 << 7
	capPortActive   = 1 << 10
	capSysImageGUID = 1 << 11
	capRCRNRNak     = 1 << 12
	capXRC          = 1 << 20
	capUDAVPort     = 1 << 6 // the port of an address vector is checked
	capWindows      = 1 << 17
	capMemMgt       = 1 << 21 // LOCAL_INV and SEND with invalidate
	capWindows2B    = 1 << 24
)

// overhead is BTH … ICRC without the payload, at its largest: BTH 12, MPH 16, RETH 16, ImmDt 4, SNDH 8, ICRC 4, tag 16.
const overhead = 76

// mtus are the path MTUs of InfiniBand; enum ibv_mtu is the index + 1.
var mtus = [...]int{256, 512, 1024, 2048, 4096}

func (c *Config) check() error {
	switch {
	case c.Name == "" || len(c.Name) >= hostq.NameBytes:
		return fmt.Errorf("device: bad NIC name %q", c.Name)
	case c.Dev == "" || len(c.Dev) >= 32:
		return fmt.Errorf("device %s: bad device name %q", c.Name, c.Dev)
	case len(c.Addrs) == 0:
		return fmt.Errorf("device %s: no address", c.Name)
	case len(c.Ports) == 0 || len(c.Ports) > maxPlanes:
		return fmt.Errorf("device %s: %d planes, 1 to %d are possible", c.Name, len(c.Ports), maxPlanes)
	}
	for i, a := range c.Addrs {
		if !a.IsValid() {
			return fmt.Errorf("device %s: address %d is empty", c.Name, i)
		}
		c.Addrs[i] = a.Unmap()
	}
	for i, p := range c.Ports {
		if p.Caps().PacketMax-overhead < mtus[0] {
			return fmt.Errorf("device %s: plane %d carries packets of %d bytes, too small for an MTU of %d", c.Name, i, p.Caps().PacketMax, mtus[0])
		}
	}
	if c.GUID == 0 {
		h := sha256.Sum256([]byte(c.Name + "|" + c.Addrs[0].String()))
		c.GUID = 0x0200_0000_0000_0000 | binary.BigEndian.Uint64(h[:])>>8
	}
	return nil
}

// packetMax is the largest packet that every plane carries.
func (c *Config) packetMax() int {
	m := c.Ports[0].Caps().PacketMax
	for _, p := range c.Ports[1:] {
		m = min(m, p.Caps().PacketMax)
	}
	return m
}

// activeMTU is the enum ibv_mtu of the largest path MTU whose packets fit every plane.
func (c *Config) activeMTU() int {
	e := 1
	for i, m := range mtus {
		//= MR-MSG-019
		if m <= c.packetMax()-overhead {
			e = i + 1
		}
	}
	return e
}

// Name is the NIC's name, HOST/mrN.
func (n *NIC) Name() string { return n.cfg.Name }

// Dev is the device name that programs see, mrN.
func (n *NIC) Dev() string { return n.cfg.Dev }

// GUID is the node GUID.
func (n *NIC) GUID() uint64 { return n.cfg.GUID }

// Addrs are the NIC's addresses, in the order of the GID table; its empty entries are left out.
func (n *NIC) Addrs() []netip.Addr { return n.cfg.Addrs }

// Attr fills the attributes of the device.
func (n *NIC) Attr(a *hostq.DeviceAttr) {
	guid := bits.ReverseBytes64(n.cfg.GUID) // big-endian in memory
	*a = hostq.DeviceAttr{
		NodeGUID: guid, SysImageGUID: guid,
		MaxMRSize: maxMRSize, PageSizeCap: pageSizeCap,
		DeviceCapFlags: capBadPkeyCntr | capCurrQPState | capPortActive | capSysImageGUID | capRCRNRNak | capUDAVPort | capXRC | capWindows | capMemMgt | capWindows2B,
		VendorID:       vendorID, VendorPartID: partID, HWVer: hwVer,
		MaxQP: maxQP, MaxQPWR: maxQPWR, MaxSGE: hostq.MaxSGE, MaxSGERd: hostq.MaxSGE, MaxCQ: maxCQ, MaxCQE: maxCQE,
		MaxMR: maxMR, MaxMW: maxMW, MaxPD: maxPD, MaxAH: maxAH, MaxSRQ: maxSRQ, MaxSRQWR: maxSRQWR, MaxSRQSGE: hostq.MaxSGE, MaxXRCD: maxXRCD, MaxMcastGrp: maxGroups, MaxMcastQPAttach: maxQPsGroup,
		MaxQPRdAtom: maxRdAtom, MaxQPInitRdAtom: maxRdAtom, MaxResRdAtom: maxRdAtom * maxQP, AtomicCap: 1, // IBV_ATOMIC_HCA
		MaxPkeys: 1, LocalCAAckDelay: 15, NumPorts: 1, NumCompVectors: compVectors, MaxInline: hostq.MaxInline, MaxDMKiB: maxDMSize >> 10,
	}
	copy(a.FWVer[:len(a.FWVer)-1], n.cfg.Version)
	copy(a.BoardID[:], "MR_EMULATED")
}

// PortAttr fills the attributes of the port.
func (n *NIC) PortAttr(port uint32, a *hostq.PortAttr) error {
	if port != 1 {
		return syscall.EINVAL
	}
	up := n.planesUp()
	width, speed, mbps := linkRate(n.Rate())
	a.State, a.PhysState = portActive, physLinkUp
	if up == 0 {
		a.State, a.PhysState = portDown, physDisabled
	}
	a.MaxMTU, a.ActiveMTU = uint32(len(mtus)), uint32(n.cfg.activeMTU())
	a.GIDTblLen, a.PkeyTblLen = uint32(len(n.gids)), 1
	a.PortCapFlags = ipBasedGIDs | reinitPortCaps
	a.MaxMsgSz, a.LinkLayer = maxMsgSize, linkEthernet
	a.ActiveWidth, a.ActiveSpeed, a.SpeedMbps = width, speed, mbps
	a.Planes, a.PlanesUp = uint32(len(n.planes)), uint32(up)
	return nil
}

// Rate is what all planes carry together.
func (n *NIC) Rate() (bps uint64) {
	for _, p := range n.planes {
		bps += p.caps.RateBps
	}
	return bps
}

// RateText prints a rate as sysfs has it: of the width and speed that the port shows.
func RateText(bps uint64) string {
	width, speed, _ := linkRate(bps)
	lanes := map[uint32]int{1: 1, 2: 4, 4: 8, 8: 12}[width]
	lane := map[uint32]struct {
		tenths int // of Gbit/s
		name   string
	}{1: {25, ""}, 4: {100, " QDR"}, 32: {250, " EDR"}, 64: {500, " HDR"}, 128: {1000, " NDR"}}[speed]
	rate, half := lanes*lane.tenths, ""
	if rate%10 != 0 {
		half = ".5"
	}
	return fmt.Sprintf("%d%s Gb/sec (%dX%s)", rate/10, half, lanes, lane.name)
}

// linkRate is the smallest width and speed that verbs has words for and that reach the planes' rate; 100 Gbit/s
// when the planes have none (programs show it, some choose by it).
func linkRate(bps uint64) (width, speed uint32, mbps uint64) {
	if bps == 0 {
		return 2, 32, 100_000 // 4X EDR
	}
	for _, l := range []struct {
		gbps         uint64
		width, speed uint32
	}{{10, 2, 1}, {25, 1, 32}, {40, 2, 4}, {50, 1, 64}, {100, 2, 32}, {200, 2, 64}, {400, 2, 128}, {800, 4, 128}, {1200, 8, 128}} {
		if bps <= l.gbps*1e9 {
			return l.width, l.speed, bps / 1e6
		}
	}
	return 8, 128, bps / 1e6
}

// maxPlanes bounds the planes of a NIC: the wire format numbers paths by plane and entropy.
const maxPlanes = 32

// Limits on what one Step does, so that no queue and no wire keeps the others waiting.
const (
	wrPerQueue = 64                    // work requests of one queue in a turn
	wrPerStep  = 512                   // work requests in all
	txPerStep  = 4                     // bursts to send
	heldRoom   = 128                   // packets that a wire refused: a burst of anything, and answers for the peers meanwhile
	stuckWire  = 1 * mono.Millisecond  // a wire that takes nothing for so long loses what it was offered
	linkCheck  = 10 * mono.Millisecond // how often the wires are asked for their link
)
