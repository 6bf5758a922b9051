package metaroce

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/cc"
)

// What people may change and ask while the engine runs, over the control socket. Not for the hot path.

// Any stands for all planes or all paths.
const Any = -1

// PathSel names paths: those of all peers, planes, or indexes where the field says so.
type PathSel struct {
	Peer  netip.Addr // the zero Addr = all
	Plane int        // Any = all
	Path  int        // Any = all
}

// Errors of the management calls.
var (
	ErrNoPeer   = errors.New("no such peer")
	ErrNoPlane  = errors.New("no such plane")
	ErrNoPath   = errors.New("no such path")
	ErrLastPath = errors.New("a plane keeps one path at least; switch the plane off instead")
)

// selected returns the planes that a selection means.
func (e *Engine) selected(s PathSel) ([]*planeTx, error) {
	if s.Plane != Any && (s.Plane < 0 || s.Plane >= len(e.planeUp)) {
		return nil, fmt.Errorf("%w: %d", ErrNoPlane, s.Plane)
	}
	if s.Path != Any && (s.Path < 0 || s.Path >= maxPaths) {
		return nil, fmt.Errorf("%w: %d", ErrNoPath, s.Path)
	}
	var out []*planeTx
	for _, a := range e.assocs {
		if s.Peer.IsValid() && a.remote != s.Peer {
			continue
		}
		for i := range a.planes {
			if s.Plane == Any || s.Plane == i {
				out = append(out, &a.planes[i])
			}
		}
	}
	if len(out) == 0 && s.Peer.IsValid() {
		return nil, fmt.Errorf("%w: %v", ErrNoPeer, s.Peer)
	}
	return out, nil
}

// DenyPaths takes paths out of use until AllowPaths. What is in flight on them ends as usual. It returns how many it
// changed.
func (e *Engine) DenyPaths(now mono.Time, s PathSel) (n int, err error) {
	e.tick(now)
	if s.Path == Any {
		return 0, ErrLastPath
	}
	planes, err := e.selected(s)
	if err != nil {
		return 0, err
	}
	bit := uint64(1) << s.Path
	for _, pl := range planes {
		if pl.whole()&bit == 0 {
			continue
		}
		if pl.whole()&^(pl.deny|bit) == 0 {
			return n, fmt.Errorf("plane %d to %s: %w", pl.idx, pl.a.name, ErrLastPath)
		}
		if pl.deny&bit == 0 {
			n++
		}
		//= MR-PATH-080
		pl.deny |= bit
		pl.refresh()
	}
	return n, nil
}

// AllowPaths undoes DenyPaths, and ends quarantines.
func (e *Engine) AllowPaths(now mono.Time, s PathSel) (n int, err error) {
	e.tick(now)
	planes, err := e.selected(s)
	if err != nil {
		return 0, err
	}
	mask := ^uint64(0)
	if s.Path != Any {
		mask = 1 << s.Path
	}
	for _, pl := range planes {
		n += bits.OnesCount64(pl.deny & mask)
		pl.deny &^= mask
		for i, p := range pl.paths {
			if p != nil && mask>>i&1 != 0 && p.state != pathActive {
				p.release()
				n++
			}
		}
		pl.refresh()
		pl.a.wakeAll()
	}
	return n, nil
}

// DenyPort keeps all paths of a plane (or of all, with Any) from using an entropy: those that may change theirs do.
func (e *Engine) DenyPort(now mono.Time, plane int, port uint16, deny bool) (n int, err error) {
	e.tick(now)
	planes, err := e.selected(PathSel{Plane: plane, Path: Any})
	if err != nil {
		return 0, err
	}
	mask := ^uint16(0)
	if plane != Any {
		mask = 1 << plane
	}
	if deny {
		for _, pl := range planes {
			if !pl.left(&pl.ent, port) {
				return 0, fmt.Errorf("plane %d to %s: %w", pl.idx, pl.a.name, ErrLastPath)
			}
		}
		//= MR-PATH-080
		e.denied[port] |= mask
	} else if e.denied[port] &^= mask; e.denied[port] == 0 {
		delete(e.denied, port)
	}
	for _, pl := range planes {
		for _, p := range pl.paths {
			if p != nil && p.srcPort == port {
				n++
				if deny {
					p.reroll()
				}
			}
		}
		pl.refresh()
	}
	return n, nil
}

// SetEntropies says where the entropies of paths come from. For all peers it holds for later ones, too.
func (e *Engine) SetEntropies(now mono.Time, peer netip.Addr, plane int, s Entropies) error {
	e.tick(now)
	switch {
	case s.Mode > EntropyExplicit:
		return fmt.Errorf("no such mode of entropies: %d", s.Mode)
	case s.Mode == EntropyExplicit && len(s.List) == 0:
		return errors.New("an explicit list of entropies is empty")
	case len(s.List) > maxPaths || s.Count < 0 || s.Count > maxPaths:
		return fmt.Errorf("more than %d paths a plane", maxPaths)
	}
	s.List = append([]uint16(nil), s.List...)
	planes, err := e.selected(PathSel{Peer: peer, Plane: plane, Path: Any})
	if err != nil {
		return err
	}
	for _, pl := range planes {
		//= MR-PATH-080
		if !pl.left(&s, 0) {
			return fmt.Errorf("plane %d to %s: %w", pl.idx, pl.a.name, ErrLastPath)
		}
	}
	if !peer.IsValid() {
		for i := range e.ents {
			if plane == Any || plane == i {
				e.ents[i] = s
			}
		}
	}
	for _, pl := range planes {
		//= MR-PATH-081
		pl.ent = s
		for i, p := range pl.paths {
			if p != nil {
				p.gen++
				p.setPort(pl.entropy(i, 0))
			}
		}
		pl.refresh()
	}
	return nil
}

// ProbeSpec names the path that a probe asks about.
type ProbeSpec struct {
	Local, Remote netip.Addr // Local may be left out: the first address of Remote's kind
	Plane, Path   int
	SrcPort       uint16 // not 0: this entropy instead of the path's own
	Size          int    // BTH … ICRC; 0 = as long as data packets
	Control       bool   // in the control class
	Wait          mono.Duration
}

// ProbeInfo is what became of a named probe.
type ProbeInfo struct {
	Done, Answered bool
	SrcPort, Size  int
	RTT            mono.Duration
}

// StartProbe sends a probe on a path of a peer, for which it needs no QP; an association is made where there is none.
// ProbeResult tells what came of it.
func (e *Engine) StartProbe(now mono.Time, s ProbeSpec) (id uint32, err error) {
	e.tick(now)
	if s.Plane < 0 || s.Plane >= len(e.planeUp) {
		return 0, fmt.Errorf("%w: %d", ErrNoPlane, s.Plane)
	}
	if s.Path < 0 || s.Path >= maxPaths {
		return 0, fmt.Errorf("%w: %d", ErrNoPath, s.Path)
	}
	for _, x := range e.cfg.Addrs {
		if !s.Local.IsValid() && x.Is4() == s.Remote.Is4() {
			s.Local = x
		}
	}
	if !s.Remote.IsValid() || !e.ownAddr(s.Local) {
		return 0, fmt.Errorf("%w: %v from %v", ErrNoPeer, s.Remote, s.Local)
	}
	a := e.assocFor(s.Local, s.Remote, true)
	if a == nil {
		return 0, errors.New("too many peers")
	}
	pl := &a.planes[s.Plane]
	if a.state == assocUp && s.Path >= a.pathLimit {
		return 0, fmt.Errorf("%w: %d; the peer takes %d", ErrNoPath, s.Path, a.pathLimit)
	}
	if s.Size == 0 {
		s.Size = pl.packetMax
	}
	if s.Size > e.cfg.Planes[s.Plane].PacketMax {
		return 0, fmt.Errorf("plane %d carries %d bytes from BTH to ICRC at most", s.Plane, e.cfg.Planes[s.Plane].PacketMax)
	}
	if s.Wait <= 0 {
		s.Wait = mono.Second
	}
	a.probers++
	a.lastUse = e.now
	e.enliven(a)
	//= MR-PATH-082
	x := e.probes.start(e, pl.path(s.Path), probeNamed, s.Size, s.Wait)
	if s.SrcPort != 0 {
		x.port = s.SrcPort
	}
	if s.Control {
		x.tos = controlTOS | pkt.ECT0
	}
	if a.state == assocIdle {
		a.open()
	}
	return x.id, nil
}

// ProbeResult tells what became of a named probe; false when it is not known (any more).
func (e *Engine) ProbeResult(now mono.Time, id uint32) (i ProbeInfo, ok bool) {
	e.tick(now)
	x := e.probes.find(id)
	if x == nil || x.kind != probeNamed {
		return i, false
	}
	return ProbeInfo{Done: x.done, Answered: x.answered, SrcPort: int(x.port), Size: x.size, RTT: x.rtt}, true
}

// release ends the use of the association by a probe.
func (a *assoc) release() {
	a.probers--
	if a.users == 0 && a.probers == 0 {
		a.e.unused(a)
		if a.state == assocOpening {
			a.rest()
		}
	}
}

func (a *assoc) wakeAll() {
	for _, q := range a.qps {
		q.wake()
	}
	a.reschedule()
}

// Profile is the congestion profile that new associations get.
func (e *Engine) Profile() cc.Profile { return e.profile }

// SetProfile changes the congestion profile of a peer, or of all, those that come later included. Windows go on from
// where they are.
func (e *Engine) SetProfile(now mono.Time, peer netip.Addr, p cc.Profile) error {
	e.tick(now)
	if err := p.Check(); err != nil {
		return err
	}
	planes, err := e.selected(PathSel{Peer: peer, Plane: Any, Path: Any})
	if err != nil {
		return err
	}
	if !peer.IsValid() {
		e.profile = p
	}
	for _, pl := range planes {
		w := pl.cwnd
		//= MR-CC-030
		pl.profile = p
		pl.newWindow()
		pl.setWindow(w)
		pl.a.wakeAll()
	}
	return nil
}
