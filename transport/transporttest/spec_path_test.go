package transporttest

import (
	"slices"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// TestSpecPathRecords: a receiver keeps records for the path ids it announced and for no others.
func TestSpecPathRecords(t *testing.T) {
	f := newForge(t, Config{Seed: 1, Planes: 2})
	limit := int(f.log[1].Hello.PathLimit)
	q := f.qp(QPOptions{})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	for i, want := range map[int]string{0: "ack", limit - 1: "ack", limit: "", 255: "", 256: "ack", 256 + limit: "", 512: ""} {
		h := to(q, wire.OpWrite, uint32(i), "TA")
		h.Path, h.RKey = uint16(i), 7
		p := f.packet(h, nil)
		p.Plane = 0
		//= MR-PATH-013
		f.want("path id", f.deliver(p), p, want)
	}
}

// TestSpecOtherPath: a packet goes again on another path, on another plane where there is one.
func TestSpecOtherPath(t *testing.T) {
	for _, planes := range []int{1, 2, 4} {
		s := newScript(t, Config{Seed: 2, Planes: planes})
		p, q := s.w.Connect(s.node(0), s.node(1), QPOptions{MTU: 1024})
		s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
		last := map[[3]uint32]*sent{}
		n, again := 0, 0
		s.fate = func(x *sent) mono.Duration {
			if !x.Op.IsData() {
				return 0
			}
			k := [3]uint32{x.DestQP, uint32(x.PSN)}
			if x.Op.IsResponse() {
				k[2] = 1
			}
			if y := last[k]; y != nil {
				again++
				//= MR-PATH-024 MR-REL-042
				if y.Header.Path == x.Header.Path || planes > 1 && y.Plane == x.Plane {
					t.Errorf("%d planes: %v was lost on path %#x", planes, x, y.Header.Path)
				}
			}
			last[k] = x
			if n++; n%6 == 0 {
				return lost
			}
			return 0
		}
		for range 10 {
			p.Send(WR{Op: transport.OpWrite, N: 20000, Key: 7})
			p.Send(WR{Op: transport.OpRead, N: 20000, Key: 7})
			s.done(p, len(p.Sends)+2)
		}
		if again < 20 {
			t.Errorf("only %d packets went again", again)
		}
		_ = q
	}
}

// TestSpecOutstanding: a path has no more in flight than one block can acknowledge.
func TestSpecOutstanding(t *testing.T) {
	f := newStranger(t, Config{Seed: 3, Engine: func(c *metaroce.Config) { c.FixedWindow = 1 << 30 }})
	f.hello.PathLimit = 4
	f.hello.Planes[0].Grant = 1 << 30
	f.meet()
	q := f.qp(QPOptions{MTU: 256, Timeout: 22})
	q.Send(WR{Op: transport.OpWrite, N: 1 << 20})
	flying := map[uint16]int{}
	for _, x := range data(f.collect()) {
		flying[x.Header.Path]++
	}
	//= MR-PATH-025
	for path, n := range flying {
		if n > 120 || n < 100 {
			t.Errorf("path %#x has %d in flight", path, n)
		}
	}
	if len(flying) != 4 {
		t.Errorf("%d paths", len(flying))
	}
}

// planeDies is a run over two planes; from 1 ms on nothing passes plane 1. Afterwards p has completed n WRITEs.
func planeDies(t *testing.T, fate func(s *script, x *sent) mono.Duration) (*script, *QP) {
	s := newScript(t, Config{Seed: 4, Planes: 2, Engine: func(c *metaroce.Config) { c.FixedWindow = 64 << 10 }})
	p, _ := s.w.Connect(s.node(0), s.node(1), QPOptions{})
	s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
	post := func() { p.Send(WR{Op: transport.OpWrite, N: 60000, Key: 7}) }
	p.OnSend = func(c Completion) {
		if c.Status != transport.OK {
			t.Fatalf("%+v", c)
		}
		if s.w.Now < 5*1000*1000 || len(p.Sends)%8 == 0 { // not all the time
			post()
		}
	}
	for range 4 {
		post()
	}
	s.run(mono.Millisecond)
	s.log = nil
	s.fate = func(x *sent) mono.Duration { return fate(s, x) }
	return s, p
}

func plane(s *script, i int) metaroce.PlaneInfo { return s.node(0).E.Assocs()[0].Planes[i] }

// TestSpecPlaneSilent: a plane that says nothing while the other one is heard is left at once, and probed.
func TestSpecPlaneSilent(t *testing.T) {
	s, _ := planeDies(t, func(_ *script, x *sent) mono.Duration {
		if x.Plane == 1 {
			return lost
		}
		return 0
	})
	//= MR-PATH-030
	if !s.until(mono.Millisecond, func() bool { return plane(s, 1).State == "probing" }) {
		t.Fatal("the plane is not taken as failed")
	}
	at := s.w.Now
	//= MR-PATH-031
	if n := plane(s, 1).InFlight; n != 0 {
		t.Errorf("%d bytes are still in flight on it", n)
	}
	s.run(200 * mono.Millisecond)
	var probes []*sent
	for _, x := range s.log {
		if x.From != 0 || x.Plane != 1 || x.At < at {
			continue
		}
		//= MR-PATH-031
		if x.Op.IsData() && x.At > at {
			t.Fatalf("%v on a failed plane, %v later", x, x.At.Sub(at))
		}
		if x.Op == wire.OpProbe && x.TOS>>2 != 48 { // else it measures the base RTT
			probes = append(probes, x)
		}
	}
	// a trial of the size that the plane carries sends pairs, a long and a short one at once: no part of this
	long := map[mono.Time]bool{}
	probes = slices.DeleteFunc(probes, func(x *sent) bool {
		if long[x.At] {
			return true
		}
		long[x.At] = len(x.Data) > 4096
		return false
	})
	//= MR-PATH-032
	gaps := []mono.Duration{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 16, 32, 50}
	if len(probes) < len(gaps) || probes[0].At != at {
		t.Fatalf("%d probes, the first %v after the failure", len(probes), probes[0].At.Sub(at))
	}
	hasty := 1 // the first ones, by the round trip
	for hasty < len(probes)-1 && probes[hasty].At.Sub(probes[hasty-1].At) < mono.Millisecond {
		hasty++
	}
	probes = probes[hasty-1:]
	//= MR-PATH-032
	if hasty > 40 || len(probes) < len(gaps) {
		t.Fatalf("%d hasty probes, %d others", hasty, len(probes))
	}
	for i := 1; i < len(probes); i++ {
		if gap := probes[i].At.Sub(probes[i-1].At); gap != gaps[min(i-1, len(gaps)-1)]*mono.Millisecond {
			t.Errorf("probe %d after %v", i, gap)
		}
	}
	for _, x := range probes {
		//= MR-PATH-033
		if len(x.Data) < 4096+wire.MaxOverhead {
			t.Errorf("a probe of %d bytes", len(x.Data))
		}
		//= MR-PATH-051
		if x.Seq != 0 {
			t.Errorf("a probe takes sequence %d", x.Seq)
		}
	}
	if plane(s, 0).State != "active" {
		t.Error("the other plane fails, too")
	}
}

// TestSpecPlaneReturns: two answered probes in a row bring a plane back, with a window to begin with.
func TestSpecPlaneReturns(t *testing.T) {
	dead, acks := true, 0
	s, p := planeDies(t, func(_ *script, x *sent) mono.Duration {
		switch {
		case x.Plane != 1:
		case x.Op == wire.OpProbeAck:
			if acks++; acks == 2 { // the second answer gets lost: the first was not one of two in a row
				return lost
			}
			dead = acks < 4 // data that comes back at once is carried
		case x.Op == wire.OpProbe:
		case dead:
			return lost
		}
		return 0
	})
	failed := false
	s.until(100*mono.Millisecond, func() bool {
		state := plane(s, 1).State
		failed = failed || state == "probing"
		return failed && state == "active"
	})
	//= MR-PATH-034
	if acks != 4 {
		t.Errorf("the plane came back after %d answers, one of them lost", acks)
	}
	if w := plane(s, 1).Window; w > 64<<10 {
		t.Errorf("it begins with a window of %d", w)
	}
	n := len(s.log)
	p.Send(WR{Op: transport.OpWrite, N: 60000, Key: 7}) // the others may be done
	s.run(mono.Millisecond)
	for _, x := range data(s.log[n:]) {
		if x.From == 0 && x.Plane == 1 {
			return
		}
	}
	t.Error("it carries no data")
}

// TestSpecLinkDown: the same at a link-down event, and no probes while the link is down.
func TestSpecLinkDown(t *testing.T) {
	s, _ := planeDies(t, func(*script, *sent) mono.Duration { return 0 })
	s.node(0).E.SetPlane(s.w.Now, 1, false)
	//= MR-PATH-030 MR-PATH-031
	if pl := plane(s, 1); pl.State != "probing" || pl.InFlight != 0 {
		t.Errorf("%+v", pl)
	}
	s.run(10 * mono.Millisecond)
	for _, x := range s.log {
		if x.From == 0 && x.Plane == 1 {
			t.Fatalf("%v on a plane that is down", x)
		}
	}
	s.node(0).E.SetPlane(s.w.Now, 1, true)
	//= MR-PATH-032 MR-PATH-034
	if !s.until(mono.Millisecond, func() bool { return plane(s, 1).State == "active" }) {
		t.Error("it does not come back")
	}
}

// TestSpecStall: time in which the caller did not run says nothing about the peer.
func TestSpecStall(t *testing.T) {
	f := newForge(t, Config{Seed: 5, Planes: 2})
	q := f.qp(QPOptions{Timeout: 8, Retry: 255}) // 1 ms
	q.Send(WR{Op: transport.OpWrite, N: 20000})
	xs := data(f.collect())
	f.n.E.NextTimeout()
	f.w.Now = f.w.Now.Add(500 * mono.Millisecond)
	f.deliver(f.acks(xs...))
	//= MR-PATH-036
	if c := f.n.E.C; c.Stalls != 1 || c.LostTimeout+c.LostTime+c.PlaneFailures != 0 || q.Failed || len(q.Sends) != 1 {
		t.Errorf("%d stalls, failed %v, %+v; lost %d %d, failures %d", c.Stalls, q.Failed, q.Sends, c.LostTimeout, c.LostTime, c.PlaneFailures)
	}
}

// TestSpecPatience: what ends a QP that gets no answer, and what does not.
func TestSpecPatience(t *testing.T) {
	t.Run("timeout 0", func(t *testing.T) {
		f := newForge(t, Config{Seed: 6})
		q := f.qp(QPOptions{Timeout: 255})
		q.Send(WR{Op: transport.OpWrite, N: 100})
		f.wait(30 * second)
		//= MR-PATH-041
		if q.Failed || len(q.Sends) != 0 {
			t.Errorf("ended: %+v", q.Sends)
		}
	})
	t.Run("loss", func(t *testing.T) {
		s := newScript(t, Config{Seed: 7})
		p, _ := s.w.Connect(s.node(0), s.node(1), QPOptions{Retry: 255, Timeout: 16})
		s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
		tries := 0
		s.fate = func(x *sent) mono.Duration {
			if x.Op == wire.OpWrite && x.PSN == 1 {
				if tries++; tries <= 25 {
					return lost
				}
			}
			return 0
		}
		p.Send(WR{Op: transport.OpWrite, N: 3 * 4096, Key: 7})
		s.done(p, 1)
		//= MR-PATH-042
		if p.Sends[0].Status != transport.OK || tries != 26 {
			t.Errorf("%+v after %d tries", p.Sends, tries)
		}
	})
	t.Run("silence", func(t *testing.T) {
		f := newForge(t, Config{Seed: 8, Planes: 2})
		q := f.qp(QPOptions{Timeout: 10, Retry: 3}) // 4.2 ms
		f.wait(40 * mono.Millisecond)
		t0 := f.w.Now
		q.Send(WR{Op: transport.OpWrite, N: 100})
		calls := 0
		for limit := t0.Add(4 * 4096 * 1024); f.w.Now < limit; calls++ {
			f.collect()
			f.w.Now = mono.Min(limit, max(f.n.E.NextTimeout(), f.w.Now+1))
		}
		early := len(q.Sends)
		f.collect()
		//= MR-PATH-040
		if len(q.Sends) != 1 || q.Sends[0].Status != transport.RetryExcErr || early != 0 {
			t.Errorf("%+v after %v", q.Sends, f.w.Now.Sub(t0))
		}
		if calls > 50 {
			t.Errorf("the engine wanted to run %d times while it waited", calls)
		}
	})
}

// probeOf asks the node.
func (f *forge) probe(pr wire.Probe, plane, size int) []*sent {
	b := make([]byte, 4000)
	n := wire.PutProbe(b, &pr, size)
	return f.deliver(f.packet(wire.Header{Op: wire.OpProbe, Path: uint16(plane) << 8}, b[:n]))
}

// TestSpecProbe: how a PROBE is answered.
func TestSpecProbe(t *testing.T) {
	f := newForge(t, Config{Seed: 9, Planes: 2})
	for _, pr := range []wire.Probe{
		{Kind: wire.ProbePath, Plane: 1, ID: 5}, {Kind: wire.ProbeMTU, Plane: 1, ID: 0xFFFFFFFF},
		{Kind: wire.ProbeQP, Plane: 1, ID: 9, QPN: 0x123, PeerQPN: 0x456, ReadNo: 77, PSN: 5},
	} {
		xs := f.probe(pr, 1, 2000)
		//= MR-PATH-050 MR-WIRE-091
		if len(xs) != 1 || xs[0].Op != wire.OpProbeAck || xs[0].Plane != 1 {
			t.Fatalf("%v is answered by %v", pr.Kind, xs)
		}
		a := xs[0].Probe
		if a.Kind != pr.Kind || a.Plane != pr.Plane || a.ID != pr.ID || a.QPN != pr.QPN || a.PeerQPN != pr.PeerQPN || a.ReadNo != pr.ReadNo {
			t.Errorf("%+v is answered by %+v", pr, a)
		}
		//= MR-SEC-005
		if len(xs[0].Payload) != wire.ProbeLen {
			t.Errorf("%d bytes", len(xs[0].Payload))
		}
	}
	//= MR-PATH-051 MR-REL-003
	if xs := of(f.wait(10*mono.Millisecond), wire.OpAck); len(xs) != 0 {
		t.Errorf("a PROBE is acknowledged: %v", xs)
	}
}

// TestSpecProbeAck: only the answer to a probe that was sent there, and the first one, counts.
func TestSpecProbeAck(t *testing.T) {
	f := newForge(t, Config{Seed: 10, Planes: 2})
	f.qp(QPOptions{})
	f.n.E.SetPlane(f.w.Now, 1, false)
	f.n.E.SetPlane(f.w.Now, 1, true)
	state := func() string { return f.n.E.Assocs()[0].Planes[1].State }
	answer := func(pr wire.Probe, plane int) []*sent {
		b := make([]byte, 64)
		n := wire.PutProbe(b, &pr, wire.ProbeLen)
		return f.deliver(f.packet(wire.Header{Op: wire.OpProbeAck, Path: uint16(plane) << 8}, b[:n]))
	}
	first := of(f.collect(), wire.OpProbe)
	if len(first) != 1 {
		t.Fatalf("probes %v", first)
	}
	pr := first[0].Probe
	//= MR-PATH-052
	for range 3 {
		wrong := pr
		wrong.ID += 17
		answer(wrong, 1)
		answer(pr, 0) // the other plane
	}
	second := of(answer(pr, 1), wire.OpProbe)
	for range 3 {
		answer(pr, 1) // the same answer again
	}
	if len(second) != 1 || state() != "probing" || f.n.E.C.ProbesAnswered != 1 {
		t.Fatalf("%s after one answer, %d counted, %v", state(), f.n.E.C.ProbesAnswered, second)
	}
	answer(second[0].Probe, 1)
	if state() != "active" {
		t.Errorf("%s after two answers", state())
	}
}

// TestSpecSinglePlane: an ECN mark and a lost packet of the only plane are no failure of it.
func TestSpecSinglePlane(t *testing.T) {
	s := newScript(t, Config{Seed: 11})
	p, _ := s.w.Connect(s.node(0), s.node(1), QPOptions{})
	s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
	n := 0
	s.fate = func(x *sent) mono.Duration {
		if n++; n%4 == 0 {
			return lost
		}
		x.TOS |= pkt.CE
		return 0
	}
	for range 50 {
		p.Send(WR{Op: transport.OpWrite, N: 10000, Key: 7})
	}
	s.done(p, 50)
	//= MR-PATH-035
	if s.node(0).E.C.PlaneFailures != 0 {
		t.Errorf("%d failures", s.node(0).E.C.PlaneFailures)
	}
}
