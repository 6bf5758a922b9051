package cm

import (
	"net/netip"
	"syscall"

	"github.com/metaroce/metaroce/internal/mono"
)

// EventKind is what an event says (enum rdma_cm_event_type).
type EventKind uint32

// Events.
const (
	EvAddrResolved EventKind = iota
	EvAddrError
	EvRouteResolved
	EvRouteError
	EvConnectRequest
	EvConnectResponse
	EvConnectError
	EvUnreachable
	EvRejected
	EvEstablished
	EvDisconnected
	EvDeviceRemoval
	EvMulticastJoin
	EvMulticastError
	EvAddrChange
	EvTimewaitExit
)

// Param are the parameters of a connection: a program's own in a command, its peer's in an event.
type Param struct {
	QPN, QKey           uint32
	RespRes, InitDepth  uint8
	Flow, SRQ           bool
	Retry, RNR          uint8
	UD                  bool
	GID                 [16]byte // UD: where to send
	HopLimit, SGIDIndex uint8
	TClass              uint8
}

// Event is something a program is told about an ID.
type Event struct {
	ID      *ID
	Listen  *ID // the listener, of CONNECT_REQUEST
	Kind    EventKind
	Status  int32
	Group   uint32 // handle of a membership
	Param   Param
	Private []byte
}

// owner is the ID that must not end before the event is acknowledged.
func (e *Event) owner() *ID {
	if e.Listen != nil {
		return e.Listen
	}
	return e.ID
}

// Channel is a queue of events. Its signal is called once for each event, and reports false when the signal could not be
// given now; it is then given with a later event that is taken.
type Channel struct {
	prog   *Program
	Handle uint32
	signal func() bool
	queue  []Event
	owed   int
	ids    int
}

func (ch *Channel) post(e Event) {
	e.Private = append([]byte(nil), e.Private...)
	if e.Param.UD && e.ID != nil {
		e.Param.HopLimit, e.Param.TClass, e.Param.SGIDIndex = hopLimit, e.ID.tos, e.ID.gidIndex()
	}
	ch.queue = append(ch.queue, e)
	if !ch.signal() {
		ch.owed++
	}
}

// Get takes the oldest event.
func (ch *Channel) Get() (Event, bool) {
	if len(ch.queue) == 0 {
		return Event{}, false
	}
	e := ch.queue[0]
	ch.queue[0] = Event{}
	ch.queue = ch.queue[1:]
	e.owner().taken++
	for ch.owed > 0 && ch.signal() {
		ch.owed--
	}
	return e, true
}

// remove takes out the events that f wants and returns how many signals the program has to take back.
func (ch *Channel) remove(f func(e *Event) bool) (signals int) {
	kept := ch.queue[:0]
	for i := range ch.queue {
		if f(&ch.queue[i]) {
			signals++
		} else {
			kept = append(kept, ch.queue[i])
		}
	}
	clear(ch.queue[len(kept):])
	ch.queue = kept
	back := min(ch.owed, signals)
	ch.owed -= back
	return signals - back
}

// Program is one program that uses the manager.
type Program struct {
	m        *Manager
	sees     map[int]bool
	hosts    []*host
	channels map[uint32]*Channel
	ids      map[uint32]*ID
	next     uint32
	closed   bool
}

// NewProgram makes a program that may use some of the NICs.
func (m *Manager) NewProgram(nics []int) *Program {
	p := &Program{m: m, sees: map[int]bool{}, channels: map[uint32]*Channel{}, ids: map[uint32]*ID{}}
	seen := map[int]bool{}
	for _, n := range nics {
		p.sees[n] = true
		if h := m.nicHost[n]; !seen[h] {
			seen[h] = true
			p.hosts = append(p.hosts, m.hosts[h])
		}
	}
	m.programs[p] = true
	return p
}

// Close ends everything of a program: its peers are told, its ports are free at once.
func (p *Program) Close(now mono.Time) {
	if p.closed {
		return
	}
	p.closed = true
	for _, ch := range p.channels { // nobody reads any more; requests that nobody heard of are IDs of the program like others
		ch.signal = func() bool { return true }
		ch.queue = nil
	}
	for _, id := range p.ids {
		id.end(now)
	}
	delete(p.m.programs, p)
}

func (p *Program) handle() uint32 {
	for {
		p.next++
		if p.next != 0 && p.ids[p.next] == nil && p.channels[p.next] == nil {
			return p.next
		}
	}
}

// NewChannel makes a channel.
func (p *Program) NewChannel(signal func() bool) (*Channel, error) {
	if len(p.channels) >= channelsMost {
		return nil, syscall.ENOMEM
	}
	ch := &Channel{prog: p, Handle: p.handle(), signal: signal}
	p.channels[ch.Handle] = ch
	return ch, nil
}

// Channel finds a channel.
func (p *Program) Channel(handle uint32) (*Channel, error) {
	if ch := p.channels[handle]; ch != nil {
		return ch, nil
	}
	return nil, syscall.EINVAL
}

// CloseChannel ends a channel without IDs.
func (p *Program) CloseChannel(handle uint32) error {
	ch := p.channels[handle]
	switch {
	case ch == nil:
		return syscall.EINVAL
	case ch.ids > 0:
		return syscall.EBUSY
	}
	delete(p.channels, handle)
	return nil
}

// ID finds an ID.
func (p *Program) ID(handle uint32) (*ID, error) {
	if id := p.ids[handle]; id != nil {
		return id, nil
	}
	return nil, syscall.EINVAL
}

// NewID makes an ID whose events go to a channel.
func (p *Program) NewID(channel uint32, ps PortSpace, qpType uint8) (*ID, error) {
	ch := p.channels[channel]
	if qpType == qpXRCSend || qpType == qpXRCRecv { // QPs there are, messages to connect them with are not built
		return nil, syscall.EOPNOTSUPP
	}
	if ch == nil || qpType != qpRC && qpType != qpUC && qpType != qpUD {
		return nil, syscall.EINVAL
	}
	switch ps {
	case PSTCP, PSUDP, PSIB, PSIPoIB:
	default:
		return nil, syscall.EPROTONOSUPPORT
	}
	if id := p.addID(ch, ps, qpType); id != nil {
		return id, nil
	}
	return nil, syscall.ENOMEM
}

func (p *Program) addID(ch *Channel, ps PortSpace, qpType uint8) *ID {
	if len(p.ids) >= idsMost {
		return nil
	}
	id := &ID{prog: p, ch: ch, Handle: p.handle(), ps: ps, qpType: qpType, nic: -1, ackTimeout: ackDefault}
	p.ids[id.Handle] = id
	ch.ids++
	p.m.IDs++
	return id
}

func (p *Program) forget(id *ID) {
	delete(p.ids, id.Handle)
	id.ch.ids--
	p.m.IDs--
}

// Migrate moves an ID and its waiting events to another channel. signals: those to take back from the old one.
func (id *ID) Migrate(to *Channel) (signals int) {
	if to == id.ch {
		return 0
	}
	var moved []Event
	fresh := map[*ID]bool{} // what is new at a listener comes with it, and all that is said of that
	for i := range id.ch.queue {
		if e := &id.ch.queue[i]; e.Listen == id {
			fresh[e.ID] = true
		}
	}
	signals = id.ch.remove(func(e *Event) bool {
		mine := e.owner() == id || fresh[e.ID]
		if mine {
			moved = append(moved, *e)
		}
		return mine
	})
	id.ch.ids--
	id.ch = to
	to.ids++
	for child := range fresh {
		child.ch.ids--
		child.ch = to
		to.ids++
	}
	for _, e := range moved {
		to.post(e)
	}
	return signals
}

// Info describes an ID.
type Info struct {
	PS         PortSpace
	QPType     uint8
	State      string
	NIC        int // -1: none yet
	Src, Dst   netip.AddrPort
	SGID, DGID [16]byte
	MTU        uint8
	TClass     uint8
	Waiting    int
}

// Info describes the ID.
func (id *ID) Info() Info {
	i := Info{PS: id.ps, QPType: id.qpType, State: id.String(), NIC: id.nic, Src: id.shown(id.src), Dst: id.shown(id.dst), TClass: id.tos, Waiting: id.waiting}
	if id.nic >= 0 {
		i.MTU = id.prog.m.cfg.NICs[id.nic].MTU
		i.SGID = id.src.Addr().As16()
	}
	if id.dst.IsValid() {
		i.DGID = id.dst.Addr().As16()
	}
	if id.conn != nil && id.conn.mtu != 0 {
		i.MTU, i.DGID = id.conn.mtu, id.conn.gid
	}
	return i
}

// shown is an address as the program that chose its family wants to see it.
func (id *ID) shown(a netip.AddrPort) netip.AddrPort {
	if a.IsValid() && id.v6 && a.Addr().Is4() {
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
	}
	return a
}

// Walk calls f for each ID.
func (m *Manager) Walk(f func(id *ID)) {
	for p := range m.programs {
		for _, id := range p.ids {
			f(id)
		}
	}
}

// Conns is how many exchanges there are, those of programs that ended and tombstones too.
func (m *Manager) Conns() int { return len(m.byComm) }

// Listening reports whether the ID waits for requests.
func (id *ID) Listening() bool { return id.state == idListening }

// Sees reports whether the program may use a NIC.
func (p *Program) Sees(nic int) bool { return p.sees[nic] }

// Of is the ID's program.
func (id *ID) Of() *Program { return id.prog }
