package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// TestSpecTwice: what the probe time called lost a second time goes again twice, on two planes.
func TestSpecTwice(t *testing.T) {
	f, q := receiver(t, Config{Seed: 3, Planes: 2})
	f.wait(2 * second) // until nothing is probed any more
	f.writes(q, 1)
	n := len(f.log)
	f.wait(4 * mono.Millisecond)
	xs := data(f.log[n:])
	if len(xs) < 3 {
		t.Fatalf("%d transmissions after the first", len(xs))
	}
	//= MR-REL-065 MR-REL-048
	if xs[0].Flags&(wire.FlagRetransmit|wire.FlagCopy) != wire.FlagRetransmit || xs[1].At == xs[0].At {
		t.Errorf("the first time: %v, then %v", xs[0], xs[1])
	}
	//= MR-REL-065
	if xs[1].At != xs[2].At || xs[1].Plane == xs[2].Plane || xs[1].PSN != xs[2].PSN {
		t.Errorf("the second time: %v and %v", xs[1], xs[2])
	}
	//= MR-REL-048
	if xs[2].Flags&(wire.FlagRetransmit|wire.FlagCopy) != wire.FlagRetransmit|wire.FlagCopy {
		t.Errorf("the copy has flags %v", xs[2].Flags)
	}
	f.deliver(f.acks(xs[2]))
	if len(q.Sends) != 1 {
		t.Errorf("%d completions", len(q.Sends))
	}
}

// TestSpecAckClass: acknowledgements pass the queues of data, unless the operator wants them in the class of data.
func TestSpecAckClass(t *testing.T) {
	for _, with := range []bool{false, true} {
		f, q := receiver(t, Config{Seed: 3, Engine: func(c *metaroce.Config) { c.AcksWithData = with }})
		want := uint8(48<<2 | pkt.ECT0)
		if with {
			want = pkt.ECT0
		}
		acks := of(f.deliver(f.write(q, 0, "A", 0, 7, bytesOf(1, 1))), wire.OpAck)
		if len(acks) == 0 {
			t.Fatal("no acknowledgement")
		}
		for _, x := range acks {
			//= MR-REL-029
			if x.TOS != want {
				t.Errorf("type of service %#x, want %#x", x.TOS, want)
			}
		}
	}
}

// TestSpecHastyProbes: where round trips are short, a plane that fell silent is probed after a few of them.
func TestSpecHastyProbes(t *testing.T) {
	s, _ := planeDies(t, func(_ *script, x *sent) mono.Duration {
		if x.Plane == 1 {
			return lost
		}
		return 0
	})
	if !s.until(mono.Millisecond, func() bool { return plane(s, 1).State == "probing" }) {
		t.Fatal("the plane is not taken as failed")
	}
	at := s.w.Now
	s.run(20 * mono.Millisecond)
	var probes []mono.Duration
	last := mono.Time(0)
	for _, x := range s.log {
		if x.From == 0 && x.Plane == 1 && x.At >= at && x.Op == wire.OpProbe && x.TOS>>2 != 48 && x.At != last {
			probes = append(probes, x.At.Sub(at))
			last = x.At
		}
	}
	rtt := plane(s, 0).SRTT
	//= MR-PATH-032
	if len(probes) < 12 || probes[0] != 0 || probes[2] > 10*rtt || probes[len(probes)-1] < 10*mono.Millisecond {
		t.Errorf("probes after %v, round trip %v", probes, rtt)
	}
	for i := 2; i < len(probes); i++ {
		//= MR-PATH-032
		if gap, was := probes[i]-probes[i-1], probes[i-1]-probes[i-2]; gap > 2*was+mono.Microsecond {
			t.Errorf("%v after %v", gap, was)
		}
	}
	s.fate = func(*sent) mono.Duration { return 0 }
	//= MR-PATH-034
	if !s.until(50*mono.Millisecond, func() bool { return plane(s, 1).State == "active" }) {
		t.Error("it does not come back")
	}
}

// TestBusyPlane: a plane whose queue to the wire is full is left out until there is room, and nothing waits for it.
func TestBusyPlane(t *testing.T) {
	f, q := receiver(t, Config{Seed: 3, Planes: 2})
	f.n.E.SetBusy(1 << 1)
	q.Send(WR{Op: transport.OpWrite, N: 1 << 20})
	for _, x := range data(f.collect()) {
		if x.Plane == 1 {
			t.Errorf("%v on a busy plane", x)
		}
	}
	f.n.E.SetBusy(1)
	xs := data(f.collect())
	if len(xs) == 0 {
		t.Error("nothing goes although a plane has room")
	}
	for _, x := range xs {
		if x.Plane == 0 {
			t.Errorf("%v on a busy plane", x)
		}
	}
}
