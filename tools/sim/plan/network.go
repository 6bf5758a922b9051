package plan

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport/cc"
	"github.com/metaroce/metaroce/transport/wire"
)

// Limits of a plan.
const (
	MaxHosts    = 1 << 20
	MaxSwitches = 1 << 16 // of a kind and plane
	MaxOverhead = 1024
	MaxRepeat   = 1 << 16
	MaxLinks    = 1 << 24 // of all planes: a link takes half a kilobyte, and more would only end for want of memory
)

// maxVerified is how many hosts have room for the longest WRITE each in every other one's region.
const maxVerified = 1 << 15

var kinds = []Kind{Single, LeafSpine, FatTree, Rail}

// shape says which keys give a topology its shape, and which of them it needs.
var shape = map[Kind][]string{
	Single:    nil,
	LeafSpine: {"leaf", "spines"},
	FatTree:   {"leaf", "pod", "aggs", "cores"},
	Rail:      {"group", "leaf", "spines"},
}

func (p *parser) topology(n *yaml.Node, t *Topology) bool {
	before := len(p.errs)
	*t = Topology{Planes: 1, MTU: 4096, Overhead: 66, Delay: mono.Microsecond}
	at := p.mapping(n, "topology", keys{
		"kind":         oneOf(p, "topology", &t.Kind, kinds...),
		"hosts":        p.integer("hosts", 2, MaxHosts, &t.Hosts),
		"planes":       p.integer("planes", 1, wire.MaxPlanes, &t.Planes),
		"leaf":         p.integer("leaf", 1, MaxHosts, &t.Leaf),
		"spines":       p.integer("spines", 1, MaxSwitches, &t.Spines),
		"pod":          p.integer("pod", 1, MaxHosts, &t.Pod),
		"aggs":         p.integer("aggs", 1, MaxSwitches, &t.Aggs),
		"cores":        p.integer("cores", 1, MaxSwitches, &t.Cores),
		"group":        p.integer("group", 1, MaxHosts, &t.Group),
		"ports":        p.integer("ports", 2, MaxHosts, &t.Ports),
		"rate":         p.rate("rate", &t.RateBps),
		"up_rate":      p.rate("up_rate", &t.UpBps),
		"delay":        p.time("delay", &t.Delay),
		"up_delay":     p.time("up_delay", &t.UpDelay),
		"mtu":          p.mtu(&t.MTU),
		"overhead":     p.integer("overhead", 0, MaxOverhead, &t.Overhead),
		"rate_unknown": p.boolean("rate_unknown", &t.RateUnknown),
	})
	for _, k := range []string{"kind", "hosts", "rate"} {
		if at[k] == nil {
			p.errf(n, "topology needs `%s:`", k)
		}
	}
	if len(p.errs) > before {
		return false
	}
	if at["up_rate"] == nil {
		t.UpBps = t.RateBps
	}
	if at["up_delay"] == nil {
		t.UpDelay = t.Delay
	}
	p.shape(n, t, at)
	if len(p.errs) == before {
		p.fits(n, t, at)
	}
	return len(p.errs) == before
}

func (p *parser) mtu(to *int) func(*yaml.Node) {
	return func(n *yaml.Node) {
		v := 0
		before := len(p.errs)
		p.integer("mtu", 256, 4096, &v)(n)
		switch {
		case len(p.errs) > before:
		case v&(v-1) != 0:
			p.errf(n, "mtu: %d is not a path MTU; one of 256, 512, 1024, 2048, 4096", v)
		default:
			*to = v
		}
	}
}

// shape checks that the keys are those of the topology's kind.
func (p *parser) shape(n *yaml.Node, t *Topology, at map[string]*yaml.Node) {
	need := map[string]bool{}
	for _, k := range shape[t.Kind] {
		need[k] = true
		if at[k] == nil {
			p.errf(n, "a %s needs `%s:`", t.Kind, strings.Join(shape[t.Kind], ":`, `"))
			return
		}
	}
	for _, k := range []string{"leaf", "spines", "pod", "aggs", "cores", "group"} {
		if at[k] != nil && !need[k] {
			p.errf(at[k], "a %s has no `%s:`", t.Kind, k)
		}
	}
	if t.Kind == Single && (at["up_rate"] != nil || at["up_delay"] != nil) {
		p.errf(n, "one switch has no links between switches: up_rate and up_delay mean nothing")
	}
}

// fits checks that the numbers make a network.
func (p *parser) fits(n *yaml.Node, t *Topology, at map[string]*yaml.Node) {
	divides := func(key string, part, whole int, what string) bool {
		if whole%part != 0 {
			p.errf(at[key], "%s: %d does not divide %s, %d", key, part, what, whole)
		}
		return whole%part == 0
	}
	ok := true
	switch t.Kind {
	case LeafSpine:
		ok = divides("leaf", t.Leaf, t.Hosts, "the hosts")
	case Rail:
		ok = divides("group", t.Group, t.Hosts, "the hosts") && divides("leaf", t.Leaf, t.Hosts/t.Group, "the servers")
	case FatTree:
		ok = divides("pod", t.Pod, t.Hosts, "the hosts") && divides("leaf", t.Leaf, t.Pod, "the hosts of a pod") &&
			divides("aggs", t.Aggs, t.Cores, "the cores")
	case Single:
	}
	if !ok {
		return
	}
	if l := t.links() * int64(t.Planes); l > MaxLinks {
		p.errf(n, "a network of %d links; %d at most", l, MaxLinks)
		return
	}
	if t.Ports == 0 {
		return
	}
	for _, s := range t.radix() {
		if s.down+s.up > t.Ports {
			p.errf(at["ports"], "ports: a %s needs %d ports (%d down, %d up), but has %d", s.name, s.down+s.up, s.down, s.up, t.Ports)
		}
	}
}

// links is how many a plane has.
func (t *Topology) links() int64 {
	n := int64(t.Hosts)
	switch t.Kind {
	case LeafSpine, Rail:
		n += int64(t.Leaves()) * int64(t.Spines)
	case FatTree:
		n += int64(t.Leaves())*int64(t.Aggs) + int64(t.Pods())*int64(t.Cores)
	case Single:
	}
	return n
}

type radix struct {
	name     string
	down, up int
}

// radix is what the switches of a plane have to have.
func (t *Topology) radix() []radix {
	switch t.Kind {
	case LeafSpine, Rail:
		return []radix{{"leaf", t.Leaf, t.Spines}, {"spine", t.Leaves(), 0}}
	case FatTree:
		return []radix{{"leaf", t.Leaf, t.Aggs}, {"aggregation switch", t.Pod / t.Leaf, t.Cores / t.Aggs}, {"core", t.Pods(), 0}}
	case Single:
	}
	return []radix{{"switch", t.Hosts, 0}}
}

func (p *parser) transport(n *yaml.Node, pl *Plan) {
	t := &pl.Transport
	*t = Transport{Kind: MetaRoCE, NIC: NICEngine, QPs: 1, RTO: 67 * mono.Millisecond, RCPlane: -1}
	if n == nil {
		return
	}
	at := p.mapping(n, "transport", keys{
		"kind":       oneOf(p, "transport", &t.Kind, MetaRoCE, RoCEv2, Ideal),
		"nic":        oneOf(p, "nic", &t.NIC, NICDevice, NICEngine),
		"verify":     p.boolean("verify", &t.Verify),
		"paths":      p.integer("paths", 1, 64, &t.Paths),
		"profile":    oneOf(p, "profile", &t.Profile, cc.ProfileDelayECN, cc.ProfilePolite, cc.ProfileFixed),
		"twin":       p.share("twin", &t.Twin),
		"qps":        p.integer("qps", 1, 256, &t.QPs),
		"dcqcn":      p.boolean("dcqcn", &t.DCQCN),
		"constants":  oneOf(p, "constants", &t.Constants, DCQCNPaper, DCQCNHPCC),
		"nak_once":   p.boolean("nak_once", &t.NAKOnce),
		"rto":        p.time("rto", &t.RTO),
		"rc_plane":   p.integer("rc_plane", 0, pl.Topology.Planes-1, &t.RCPlane),
		"adaptive":   p.boolean("adaptive", &t.Adaptive),
		"window_bdp": p.number("window_bdp", 0, 1000, &t.WindowBDP),
	})
	for _, o := range []struct {
		keys []string
		kind TransportKind
	}{{[]string{"paths", "profile", "twin"}, MetaRoCE}, {[]string{"qps", "dcqcn", "constants", "nak_once", "rto", "rc_plane", "adaptive"}, RoCEv2}} {
		for _, k := range o.keys {
			if at[k] != nil && t.Kind != o.kind {
				p.errf(at[k], "%s: is for %s, but the transport is %s", k, o.kind, t.Kind)
			}
		}
	}
	if at["nic"] != nil && t.Kind == Ideal {
		p.errf(at["nic"], "nic: the ideal transport has none")
	}
	if t.Verify && (t.NIC != NICDevice || pl.Topology.Hosts > maxVerified) {
		p.errf(at["verify"], "verify: is for nic: device and %d hosts at most", maxVerified)
	}
	if at["window_bdp"] != nil && t.Kind == Ideal {
		p.errf(at["window_bdp"], "window_bdp: the ideal transport has no window")
	}
	if t.Kind == RoCEv2 && at["dcqcn"] == nil {
		t.DCQCN = true
	}
	switch {
	case t.Kind == RoCEv2 && t.DCQCN && t.Constants == "":
		t.Constants = DCQCNPaper
	case t.Constants != "" && !t.DCQCN:
		p.errf(at["constants"], "constants: are DCQCN's, and dcqcn is false")
	}
	if t.Kind == RoCEv2 {
		pl.Topology.Header = RoCEv2Header
	}
	if t.Kind == RoCEv2 && t.RTO <= 0 {
		p.errf(at["rto"], "rto: a retransmission timer is longer than 0")
	}
	if t.Kind == MetaRoCE && (t.Profile == cc.ProfileFixed) != (at["window_bdp"] != nil) {
		p.errf(n, "profile: fixed and window_bdp: go together")
	}
}

// switches reads what stands in front of switch ports; n may be nil.
func (p *parser) switches(n *yaml.Node, pl *Plan) {
	s, t := &pl.Switch, &pl.Topology
	*s = Switch{ECNProb: 1, ControlClass: pl.Transport.Kind == MetaRoCE, Queue: t.BDP()}
	s.Queue = (s.Queue + t.WireBytes() - 1) / t.WireBytes() * t.WireBytes()
	if n == nil {
		n = &yaml.Node{Kind: yaml.MappingNode, Line: 1}
	}
	var pfc *yaml.Node
	at := p.mapping(n, "switch", keys{
		"queue":         p.bytes("queue", t, &s.Queue),
		"ecn_min":       p.bytes("ecn_min", t, &s.ECNMin),
		"ecn_max":       p.bytes("ecn_max", t, &s.ECNMax),
		"ecn_prob":      p.share("ecn_prob", &s.ECNProb),
		"trim":          p.boolean("trim", &s.Trim),
		"control_class": p.boolean("control_class", &s.ControlClass),
		"pfc":           func(v *yaml.Node) { pfc = v },
	})
	if pfc != nil {
		if at["queue"] == nil {
			s.Queue = 0 // pauses bound it
		}
		p.pfc(pfc, pl)
	}
	wireBytes := t.WireBytes()
	switch {
	case s.Queue != 0 && s.Queue < wireBytes:
		p.errf(at["queue"], "queue: %d bytes are less than one full packet, %d", s.Queue, wireBytes)
	case s.ECNMin > s.ECNMax:
		p.errf(n, "ecn_min (%d bytes) is above ecn_max (%d bytes)", s.ECNMin, s.ECNMax)
	case s.ECNProb == 0:
		p.errf(at["ecn_prob"], "ecn_prob: must be above 0%%; without ecn_max nothing is marked")
	case s.Trim && pl.Transport.Kind == RoCEv2:
		p.errf(at["trim"], "trim: RoCEv2 does not know trimmed packets")
	case s.Trim && !s.ControlClass:
		p.errf(at["trim"], "trim: what is left of a packet goes on in the control class; set control_class: true")
	case s.Trim && s.Queue == 0:
		p.errf(at["trim"], "trim: a queue without bound trims nothing; give queue:")
	case pl.Transport.Kind == RoCEv2 && pl.Transport.DCQCN && s.ECNMax == 0:
		p.errf(n, "DCQCN lives on marks: give ecn_min: and ecn_max: in switch:, or dcqcn: false in transport:")
	case s.Queue != 0 && s.ECNMin >= s.Queue:
		p.note(n, "ecn_min (%d bytes) is not below the queue (%d bytes): nothing is ever marked", s.ECNMin, s.Queue)
	}
}

func (p *parser) pfc(n *yaml.Node, pl *Plan) {
	f, t := &pl.Switch.PFC, &pl.Topology
	at := p.mapping(n, "pfc", keys{
		"xoff":     p.bytes("xoff", t, &f.XOFF),
		"xon":      p.bytes("xon", t, &f.XON),
		"headroom": p.bytes("headroom", t, &f.Headroom),
	})
	if at["xoff"] == nil || f.XOFF == 0 {
		p.errf(n, "pfc needs `xoff:`, the bytes of an ingress port from which its peer is paused")
		return
	}
	if at["xon"] == nil {
		f.XON = f.XOFF * 4 / 5
	}
	if at["headroom"] == nil {
		f.Headroom = t.headroom()
	}
	if f.XON > f.XOFF {
		p.errf(at["xon"], "xon: %d bytes are above xoff, %d", f.XON, f.XOFF)
	}
	if pl.Transport.Kind == MetaRoCE {
		p.note(n, "PFC with metaroce: allowed, but it is made to do without, and pauses slow what it measures")
	}
}

// pauseBytes is a pause frame on the wire.
const pauseBytes = 84

// headroom is what may still come above XOFF: the packet that crossed it, what is on the cable both ways while the pause frame
// is sent and travels, and a packet that its receiver has begun with.
func (t *Topology) headroom() int {
	rate, delay := max(t.RateBps, t.UpBps), max(t.Delay, t.UpDelay)
	n, more := carried(rate, 2*delay)
	if more {
		n++
	}
	return (n+7)/8 + pauseBytes + 2*t.WireBytes()
}

// String describes the topology in a line.
func (t *Topology) String() string {
	switch t.Kind {
	case LeafSpine:
		return fmt.Sprintf("leaf-spine: %d leaves of %d hosts, %d spines", t.Leaves(), t.Leaf, t.Spines)
	case FatTree:
		return fmt.Sprintf("fat-tree: %d pods of %d hosts, %d leaves and %d aggregation switches each, %d cores",
			t.Pods(), t.Pod, t.Pod/t.Leaf, t.Aggs, t.Cores)
	case Rail:
		return fmt.Sprintf("rail: %d servers of %d, %d leaves, %d spines", t.Hosts/t.Group, t.Group, t.Leaves(), t.Spines)
	case Single:
	}
	return fmt.Sprintf("switch: %d hosts", t.Hosts)
}
