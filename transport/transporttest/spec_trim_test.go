package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

const (
	trimDSCP = 45
	lastDSCP = 46
)

func trims(c *metaroce.Config) {
	small(c)
	c.TrimDSCP, c.TrimLastDSCP = trimDSCP, lastDSCP
}

// cut trims a packet as a switch does.
func cut(x *sent, dscp uint8) {
	x.Data, x.TOS = x.Data[:28], dscp<<2|1
}

// TestSpecTrimmed: a trimmed packet is told of at once, sent again once, and leaves no other trace.
func TestSpecTrimmed(t *testing.T) {
	for _, last := range []bool{false, true} {
		s := newScript(t, Config{Seed: 1, Planes: 2, Engine: trims})
		p, _ := s.w.Connect(s.node(0), s.node(1), QPOptions{MTU: 1024})
		s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
		p.Send(WR{Op: transport.OpWrite, N: 1000, Key: 7})
		s.done(p, 1)
		s.log = nil
		var was *sent
		copies := 0
		s.fate = func(x *sent) mono.Duration {
			if x.From == 0 && x.Op == wire.OpWrite && x.PSN == 3 {
				if copies++; copies == 1 {
					was = x
					cut(x, map[bool]uint8{false: trimDSCP, true: lastDSCP}[last])
				}
			}
			return 0
		}
		fill(s.node(0).Mem[:8000], 3)
		p.Send(WR{Op: transport.OpWrite, N: 8000, Key: 7})
		s.done(p, 2)
		var told []wire.TrimBlock
		for _, x := range of(s.log, wire.OpAck) {
			told = append(told, x.Ack.Trims...)
			//= MR-REL-061
			if answer([]*sent{x}, was.Packet) == "ack" && was.Data != nil {
				t.Errorf("a trimmed packet is acknowledged")
			}
		}
		//= MR-REL-060 MR-REL-061
		if len(told) != 1 || told[0] != (wire.TrimBlock{Path: was.Header.Path, Seq: was.Seq, LastHop: last}) || s.node(1).E.C.Trimmed != 1 {
			t.Errorf("last %v: told %+v", last, told)
		}
		//= MR-REL-062
		if c := s.node(0).E.C; c.LostTrim != 1 || copies != 2 || c.LostTimeout+c.LostGap+c.LostTime != 0 {
			t.Errorf("last %v: %d sent again for a trim, %d copies, lost otherwise %d", last, c.LostTrim, copies, c.LostTimeout+c.LostGap+c.LostTime)
		}
		//= MR-REL-063
		i := plane(s, int(was.Plane)).Paths
		for _, x := range i {
			if x.Path == int(was.Header.Path&0xff) && (x.State != "active" || x.Loss > 0) {
				t.Errorf("last %v: the path is blamed: %+v", last, x)
			}
		}
	}
}

// TestSpecTrimForged: what claims to be trimmed and is not, does nothing.
func TestSpecTrimForged(t *testing.T) {
	f := newForge(t, Config{Seed: 2, Engine: trims})
	q := f.qp(QPOptions{})
	f.n.Keys[7] = Key{0, 1 << 20, true, true, true, false}
	w := f.write(q, 0, "TA", 0, 7, bytesOf(9, 100))
	c := w
	c.Data, c.TOS = w.Data[:40], trimDSCP<<2
	xs := f.deliver(c)
	if len(xs) != 1 || len(xs[0].Ack.Trims) != 1 || len(xs[0].Ack.Paths) != 0 {
		t.Fatalf("told %v", xs)
	}
	//= MR-REL-061
	f.want("the whole packet later", f.deliver(w), w, "ack")
	f.wait(10 * mono.Millisecond)
	if xs := f.deliver(c); len(xs) != 0 {
		t.Errorf("a cut copy of what has arrived: %v", xs)
	}
	c.TOS = 10 << 2
	if xs := f.deliver(c); len(xs) != 0 || f.n.E.C.Trimmed != 2 {
		t.Errorf("another class: %v", xs)
	}
	many := 0
	for i := range 200 {
		h := to(q, wire.OpWrite, uint32(i+1), "T")
		p := f.packet(h, nil)
		p.Data, p.TOS = p.Data[:28], trimDSCP<<2
		f.n.E.HandlePackets(f.w.Now, append(f.n.rx[:0], p))
	}
	for _, x := range f.collect() {
		many += len(x.Ack.Trims)
	}
	//= MR-REL-061
	if many == 0 || many > 64 {
		t.Errorf("%d blocks for 200 trimmed packets", many)
	}
	//= MR-REL-062
	f.deliver(f.ack(acked{Trims: []wire.TrimBlock{{Path: 0, Seq: 12345}, {Path: 0xFFFF, Seq: 1}}}))
	if f.n.E.C.LostTrim+f.n.E.C.AckViolations != 0 {
		t.Error("a block for a number that was never sent has an effect")
	}
}

// TestSpecTwins: messages of one packet are sent twice where that is allowed, and not more often than allowed.
func TestSpecTwins(t *testing.T) {
	for _, share := range []float64{0, 0.05, 1} {
		s := newScript(t, Config{Seed: 3, Planes: 2, Engine: func(c *metaroce.Config) { c.TwinShare = share }})
		p, _ := s.w.Connect(s.node(0), s.node(1), QPOptions{})
		s.node(1).Keys[7] = Key{0, 1 << 20, true, true, true, false}
		first := map[uint32]*sent{}
		twins := 0
		s.fate = func(x *sent) mono.Duration {
			if x.From != 0 || x.Op != wire.OpWrite {
				return 0
			}
			psn := uint32(x.PSN)
			y := first[psn]
			if y == nil {
				first[psn] = x
				return 0
			}
			twins++
			//= MR-REL-064 MR-REL-048
			if x.Flags&wire.FlagCopy == 0 || x.Plane == y.Plane || x.At != y.At || x.Flags&wire.FlagTail == 0 {
				t.Errorf("%v after %v at %d", x, y, y.At)
			}
			return 0
		}
		for i := range 200 {
			p.Send(WR{Op: transport.OpWrite, N: 1000, Key: 7})
			p.Send(WR{Op: transport.OpWrite, N: 10000, Key: 7})
			s.done(p, 2*i+2)
		}
		//= MR-REL-064
		if most := int(share*200*11000/1000) + 1; share == 0 && twins > 0 || twins > most || share > 0 && twins < 100 {
			t.Errorf("share %v: %d of 200 sent twice", share, twins)
		}
	}
}

// TestSpecChosen: an ACCEPT of a version that was not offered means nothing.
func TestSpecChosen(t *testing.T) {
	f, _ := opener(t, Config{Seed: 4})
	tag := stage(f.collect(), wire.HelloInit)[0].Hello.Tag
	for _, v := range []uint8{0, 2, 255} {
		h := f.hello
		h.Stage, h.EchoTag, h.Chosen, h.VersionMax = wire.HelloAccept, tag, v, 255
		f.deliver(f.helloPacket(h, 0))
		//= MR-ASC-023
		if s := f.n.E.Assocs()[0].State; s != "opening" {
			t.Errorf("version %d: %s", v, s)
		}
	}
	f.reply(wire.HelloAccept, tag, f.addr)
	if s := f.n.E.Assocs()[0].State; s != "up" {
		t.Errorf("version 1: %s", s)
	}
}
