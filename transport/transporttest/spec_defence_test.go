package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/wire"
)

// TestSpecOldGrant: an ACK that was overtaken does not bring an old grant back.
func TestSpecOldGrant(t *testing.T) {
	f := newForge(t, Config{Seed: 1, Planes: 2})
	f.qp(QPOptions{})
	grant := func() int { return f.n.E.Assocs()[0].Planes[1].Grant }
	block := func(g uint32) acked { return acked{Planes: []wire.PlaneBlock{{Plane: 1, Grant: g}}} }
	older := f.ack(block(10_000))
	f.wait(10 * mono.Microsecond)
	f.deliver(f.ack(block(20_000)))
	f.deliver(older)
	//= MR-CC-011
	if g := grant(); g != 20_000 {
		t.Errorf("an older ACK sets the grant to %d", g)
	}
	f.wait(10 * mono.Microsecond)
	f.deliver(f.ack(block(5000)))
	//= MR-CC-011
	if g := grant(); g != 5000 {
		t.Errorf("a later ACK leaves the grant at %d", g)
	}
}

// TestSpecLeap: one stamp from the future is no reason to take everything that is real for old; a clock that was
// moved is believed after a while.
func TestSpecLeap(t *testing.T) {
	f := newForge(t, Config{Seed: 1})
	q := f.qp(QPOptions{})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	write := func(psn, ahead uint32) (answered string) {
		h := to(q, wire.OpWrite, psn, "TA")
		h.RKey, h.TS = 7, f.ts()+ahead
		p := f.packet(h, nil)
		return answer(f.deliver(p), p)
	}
	if got := write(0, 0); got != "ack" {
		t.Fatal(got)
	}
	const leap = 62_500_000 // a second
	//= MR-REL-018
	for range 3 {
		if got := write(1, leap); got != "" {
			t.Errorf("a stamp from the future: %q", got)
		}
		f.wait(9 * mono.Millisecond)
		if got := write(1, 0); got != "ack" {
			t.Fatalf("the real peer is answered %q", got)
		}
	}
	if n := f.n.E.C.DropLeap; n != 3 {
		t.Errorf("%d counted", n)
	}
	//= MR-REL-018
	write(2, leap)
	f.wait(11 * mono.Millisecond)
	if got := write(3, leap/2); got != "" { // does not agree with the other
		t.Errorf("a second false stamp: %q", got)
	}
	f.wait(11 * mono.Millisecond)
	if got := write(2, leap/2); got != "ack" {
		t.Errorf("a clock that was moved: %q", got)
	}
	f.wait(300 * mono.Millisecond)
	if got := write(4, leap/2+62_500*200); got != "ack" { // 200 ms less on the way than the one before
		t.Errorf("a stamp within the age limit: %q", got)
	}
}

// TestSpecCookieAge: a cookie is good for a while, not for ever.
func TestSpecCookieAge(t *testing.T) {
	for _, x := range []struct {
		after mono.Duration
		want  int
	}{{0, 1}, {31 * second, 1}, {65 * second, 0}, {1000 * second, 0}} {
		f := newStranger(t, Config{Seed: 1})
		f.w.Now = f.w.Now.Add(7 * second)
		f.hello.Cookie = stage(f.say(wire.HelloInit, 0), wire.HelloCookie)[0].Hello.Cookie
		f.w.Now = f.w.Now.Add(x.after)
		//= MR-ASC-013
		if got := len(stage(f.say(wire.HelloConfirm, 0), wire.HelloAccept)); got != x.want {
			t.Errorf("%v old: %d answers", x.after, got)
		}
	}
}

// TestSpecWholeSend: a SEND whose packets leave bytes out, or that another message breaks into, fails.
func TestSpecWholeSend(t *testing.T) {
	type step func(f *forge, q *QP, psn uint32) []*sent
	send := func(flags string, ssn, off uint32, n int) step {
		return func(f *forge, q *QP, psn uint32) []*sent {
			return f.deliver(f.send(q, psn, flags, ssn, off, bytesOf(1, n)))
		}
	}
	imm := func(flags string, ssn, off uint32, n int) step {
		return func(f *forge, q *QP, psn uint32) []*sent {
			h := to(q, wire.OpSendImm, psn, flags)
			h.SSN, h.Off = ssn, off
			return f.deliver(f.packet(h, bytesOf(1, n)))
		}
	}
	write := func(f *forge, q *QP, psn uint32) []*sent {
		return f.deliver(f.write(q, psn, "TA", 0, 7, bytesOf(2, 100)))
	}
	for name, x := range map[string]struct {
		steps []step
		good  bool
	}{
		"whole":              {[]step{send("", 0, 0, 1024), send("", 0, 1024, 1024), imm("TA", 0, 2048, 5), write, send("TA", 1, 0, 9)}, true},
		"a hole":             {[]step{send("", 0, 0, 1024), send("TA", 0, 2048, 5)}, false},
		"no beginning":       {[]step{send("TA", 0, 1024, 5)}, false},
		"twice":              {[]step{send("", 0, 0, 1024), send("TA", 0, 0, 1024)}, false},
		"broken into":        {[]step{send("", 0, 0, 1024), write, send("TA", 0, 1024, 5)}, false},
		"end of another":     {[]step{send("", 0, 0, 1024), send("TA", 1, 1024, 5)}, false},
		"immediate too soon": {[]step{imm("", 0, 0, 1024), send("TA", 0, 1024, 5)}, false},
	} {
		f := newForge(t, Config{Seed: 1})
		q := f.qp(QPOptions{MTU: 1024})
		f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
		for i := range 3 {
			q.Recv(uint64(i), uint64(i)*8192, 8192)
		}
		for i, s := range x.steps {
			s(f, q, uint32(i))
		}
		//= MR-MSG-035
		if q.Failed == x.good {
			t.Errorf("%s: failed %v %v", name, q.Failed, q.Err)
		}
		for _, c := range q.Received {
			if !x.good && c.Status == transport.OK {
				t.Errorf("%s: %+v", name, c)
			}
		}
		if x.good && len(q.Received) != 2 {
			t.Errorf("%s: %+v", name, q.Received)
		}
	}
}
