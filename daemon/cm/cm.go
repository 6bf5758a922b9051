// Package cm is the connection manager: what a kernel's rdma_cm and ib_cm do elsewhere. It speaks the standard messages
// on QP 1 (REQ, REP, RTU, …), so that soft-RoCE and hardware NICs can connect.
//
// Contract. One goroutine owns a Manager and everything made from it; it does no I/O and reads no clock.
//   - inputs: HandleMAD (received), HandleTimers (when NextTimeout has come), and the commands of a Program;
//   - outputs: Config.Send for messages, a Channel's signal for each event, GetEvent for the event itself.
//
// Time never goes back. Spurious calls are harmless.
//
// An ID is what a program holds (rdma_cm_id): id.go, ports.go. A conn is one exchange with a peer: conn.go has its table of
// states, actions.go what is done. A conn outlives its ID while the peer has still to be told, and then as a tombstone that
// answers repetitions.
//
// Repetition follows the measured round trip, not the coded 4.3 s of CM: duplicates are harmless, and a connection over a
// wire that loses 10 % must not take seconds.
package cm

import (
	"container/heap"
	"net/netip"
	"strings"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/rng"
)

// Times, and bounds on what programs and peers may make us hold.
const (
	rtoFirst   = 5 * mono.Millisecond // where the round trip is not known
	rtoLeast   = 2 * mono.Millisecond
	rtoMost    = 400 * mono.Millisecond
	connectFor = 8 * mono.Second // a peer that never answers
	dreqFor    = 2 * mono.Second
	waitFor    = 60 * mono.Second // a peer that says that its program takes its time
	waitAgain  = 500 * mono.Millisecond
	waitMost   = 300 * mono.Second
	timewait   = 1 * mono.Second // longer than a peer's longest pause between repetitions

	idsMost      = 65536 // of a program
	channelsMost = 1024
	groupsMost   = 256     // of an ID
	eventsMost   = 1 << 16 // of a channel, of those that its program makes itself
	connsMost    = 1 << 20
	refusedMost  = 1 << 16 // exchanges beyond which refusals are not remembered
	backlogMost  = 1024
	rttMost      = 4096
)

// NIC is a NIC as the manager sees it.
type NIC struct {
	Name  string // HOST/DEV; NICs of one HOST share its port numbers
	GUID  uint64
	Addrs []netip.Addr // GID i is address i
	MTU   uint8        // enum ibv_mtu
	Reads uint8        // READs and atomics of a QP
}

// Config makes a Manager.
type Config struct {
	NICs []NIC
	Seed uint64
	// Send sends a message from an address of a NIC to QP 1 of another.
	Send func(now mono.Time, nic int, local, remote netip.Addr, mad *[MADLen]byte)
	// Resolve tells that messages and packets will go there; may be nil.
	Resolve func(now mono.Time, nic int, local, remote netip.Addr)
}

// Stats count what happened.
type Stats struct {
	Tx, Rx       map[Attr]uint64
	Retransmits  uint64
	Established  uint64
	Rejected     uint64 // sent: no listener, a program's refusal
	Timeouts     uint64 // exchanges given up
	Stale        uint64 // connections that ended as their peer began anew with the same QP
	DropMad      uint64 // no message of ours
	DropUnknown  uint64 // about an exchange that is not here
	DropState    uint64 // makes no sense in the state of its exchange
	DropBacklog  uint64 // a listener's programs are behind
	DropLimit    uint64 // more exchanges or IDs than we hold
	DropNoTarget uint64 // to an address that is none of the NIC
}

type remoteKey struct {
	addr netip.Addr
	comm uint32
	sidr bool
}

type qpKey struct {
	addr netip.Addr
	guid uint64
	qpn  uint32
}

// Manager is the connection manager of all NICs of a daemon.
type Manager struct {
	cfg      Config
	rnd      *rng.Source
	hosts    []*host
	nicHost  []int
	programs map[*Program]bool
	byComm   map[uint32]*conn
	byRemote map[remoteKey]*conn
	byQP     map[qpKey]*conn
	timers   connHeap
	nextComm uint32
	nextTID  uint64
	rtt      map[netip.Addr]mono.Duration
	msg      Msg // scratch of HandleMAD
	IDs      int
	S        Stats
}

// New makes a manager.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg, rnd: rng.New(cfg.Seed, "cm"), programs: map[*Program]bool{}, byComm: map[uint32]*conn{}, byRemote: map[remoteKey]*conn{},
		byQP: map[qpKey]*conn{}, rtt: map[netip.Addr]mono.Duration{}, S: Stats{Tx: map[Attr]uint64{}, Rx: map[Attr]uint64{}}}
	m.nextComm = m.rnd.Uint32()
	m.nextTID = uint64(m.rnd.Uint32()) << 32
	names := map[string]int{}
	for _, n := range cfg.NICs {
		name, _, _ := strings.Cut(n.Name, "/")
		h, ok := names[name]
		if !ok {
			h = len(m.hosts)
			names[name] = h
			m.hosts = append(m.hosts, &host{name: name, ports: map[portKey][]*ID{}})
		}
		m.nicHost = append(m.nicHost, h)
	}
	return m
}

// SetAddrs changes the addresses of a NIC; a place that is empty has the zero address. What goes on with an address that is
// gone ends when it hears nothing more.
func (m *Manager) SetAddrs(nic int, addrs []netip.Addr) { m.cfg.NICs[nic].Addrs = addrs }

// NextTimeout is when HandleTimers should be called next, or mono.Never.
func (m *Manager) NextTimeout() mono.Time {
	if len(m.timers) == 0 {
		return mono.Never
	}
	return m.timers[0].due
}

// HandleTimers does what is due.
func (m *Manager) HandleTimers(now mono.Time) {
	for len(m.timers) > 0 && m.timers[0].due <= now {
		c := m.timers[0]
		m.arm(c, mono.Never)
		c.step(now, inTimer, nil)
	}
}

// HandleMAD takes a message that came to an address of a NIC.
func (m *Manager) HandleMAD(now mono.Time, nic int, src, dst netip.Addr, mad []byte) {
	if !Parse(mad, &m.msg) {
		m.S.DropMad++
		return
	}
	msg := &m.msg
	m.S.Rx[msg.Attr]++
	switch msg.Attr {
	case REQ, SIDRREQ:
		m.handleRequest(now, nic, src, dst, msg)
		return
	case SIDRREP:
		if c := m.byComm[msg.Local]; c != nil && c.remote == src && c.ud && c.active {
			c.step(now, inSIDRREP, msg)
			return
		}
	case MRA, REJ, REP, RTU, DREQ, DREP:
		if c := m.find(src, msg); c != nil {
			c.step(now, inputs[msg.Attr], msg)
			return
		}
		if msg.Attr == DREQ { // it is over here already
			m.S.DropUnknown++
			m.answer(now, nic, dst, src, &Msg{Attr: DREP, TID: msg.TID, Local: msg.Remote, Remote: msg.Local})
			return
		}
		if msg.Attr == REP {
			m.S.DropUnknown++
			m.answer(now, nic, dst, src, &Msg{Attr: REJ, TID: msg.TID, Local: msg.Remote, Remote: msg.Local, Which: 1, Reason: RejectBadComm})
			return
		}
	}
	m.S.DropUnknown++
}

var inputs = map[Attr]input{MRA: inMRA, REJ: inREJ, REP: inREP, RTU: inRTU, DREQ: inDREQ, DREP: inDREP}

// find finds the exchange of a message by its IDs. Who does not send from the peer's address is not the peer.
func (m *Manager) find(src netip.Addr, msg *Msg) *conn {
	c := m.byComm[msg.Remote]
	if c == nil && msg.Attr == REJ { // the one who gives up before we answered knows no ID of ours
		c = m.byRemote[remoteKey{src, msg.Local, false}]
	}
	if c == nil || c.remote != src || c.ud || c.peer != 0 && msg.Local != 0 && c.peer != msg.Local {
		return nil
	}
	return c
}

// answer sends a message that nobody waits for.
func (m *Manager) answer(now mono.Time, nic int, local, remote netip.Addr, msg *Msg) {
	var mad [MADLen]byte
	msg.Put(&mad)
	m.S.Tx[msg.Attr]++
	if msg.Attr == REJ {
		m.S.Rejected++
	}
	m.cfg.Send(now, nic, local, remote, &mad)
}

func (m *Manager) tid() uint64 {
	m.nextTID++
	return m.nextTID
}

// newConn makes an exchange with an ID of its own.
func (m *Manager) newConn(now mono.Time, nic int, local, remote netip.Addr) *conn {
	if len(m.byComm) >= connsMost {
		m.S.DropLimit++
		return nil
	}
	for m.nextComm++; m.nextComm == 0 || m.byComm[m.nextComm] != nil; m.nextComm++ {
	}
	c := &conn{m: m, nic: nic, local: local, remote: remote, comm: m.nextComm, due: mono.Never, at: -1, psn: m.rnd.Uint32() & 0xffffff, began: now}
	m.byComm[c.comm] = c
	return c
}

// drop forgets an exchange.
func (m *Manager) drop(c *conn) {
	m.arm(c, mono.Never)
	delete(m.byComm, c.comm)
	if k := (remoteKey{c.remote, c.peer, c.ud}); m.byRemote[k] == c {
		delete(m.byRemote, k)
	}
	c.unbindQP()
	if c.id != nil {
		c.id.conn = nil
		c.id = nil
	}
}

func (m *Manager) learn(a netip.Addr, sample mono.Duration) {
	old, ok := m.rtt[a]
	if !ok && len(m.rtt) >= rttMost {
		clear(m.rtt)
	}
	if ok {
		sample = (7*old + sample) / 8
	}
	m.rtt[a] = sample
}

// rto is how long the first answer of a peer is waited for.
func (m *Manager) rto(a netip.Addr) mono.Duration {
	if r, ok := m.rtt[a]; ok {
		return min(max(3*r, rtoLeast), rtoMost)
	}
	return rtoFirst
}

// arm sets when an exchange is looked at again.
func (m *Manager) arm(c *conn, due mono.Time) {
	c.due = due
	switch {
	case due == mono.Never && c.at >= 0:
		heap.Remove(&m.timers, c.at)
	case due != mono.Never && c.at < 0:
		heap.Push(&m.timers, c)
	case due != mono.Never:
		heap.Fix(&m.timers, c.at)
	}
}

type connHeap []*conn

func (h connHeap) Len() int           { return len(h) }
func (h connHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h connHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *connHeap) Push(x any) {
	c := x.(*conn)
	c.at = len(*h)
	*h = append(*h, c)
}

// Pop implements heap.Interface.
func (h *connHeap) Pop() any {
	c := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	c.at = -1
	return c
}
