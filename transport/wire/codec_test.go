package wire

import (
	"bytes"
	"strings"
	"testing"
)

func TestEnumNames(t *testing.T) {
	seen := map[string]bool{}
	for d := Drop(0); d < numDrops; d++ {
		if n := d.String(); n == "" || strings.Contains(n, "(") || seen[n] {
			t.Errorf("drop %d is called %q", uint8(d), n)
		} else {
			seen[n] = true
		}
	}
	for o := range 256 {
		known := o >= opBase && opTable[o-opBase].known
		if s := Opcode(o).String(); strings.Contains(s, "(") == known {
			t.Errorf("opcode %#x is called %q", o, s)
		}
	}
	for _, c := range []struct{ got, want string }{
		{Drop(200).String(), "drop(0xc8)"},
		{Flags(0).String(), "-"},
		{(FlagTail | FlagCopy).String(), "TAIL|COPY"},
		{Flags(0x81).String(), "RETRANSMIT|flags(0x80)"},
		{RefuseLater.String(), "LATER"},
		{RefusalCode(0x7e).String(), "refusalcode(0x7e)"},
		{HelloConfirm.String(), "CONFIRM"},
		{BlockRefusal.String(), "REFUSAL"},
		{ProbeMTU.String(), "MTU"},
		{AnswerExecuted.String(), "EXECUTED"},
		{Resend.String() + Fail.String() + Ignore.String() + Reaction(9).String(), "resendfailignorereaction(0x9)"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func TestOpcodeKinds(t *testing.T) {
	for o := range 256 {
		op := Opcode(o)
		req, resp := o >= 0xC0 && o <= 0xC7, o == 0xC8 || o == 0xC9
		if op.IsRequest() != req || op.IsResponse() != resp || op.IsData() != (req || resp) {
			t.Errorf("%v: request %v, response %v, data %v", op, op.IsRequest(), op.IsResponse(), op.IsData())
		}
	}
}

// TestReactions: the range of a code decides, known or not.
//
// = MR-WIRE-075 test
func TestReactions(t *testing.T) {
	for c := range 256 {
		want := Ignore
		switch {
		case c < 0x40:
			want = Resend
		case c < 0x80:
			want = Fail
		}
		if got := RefusalCode(c).Reaction(); got != want {
			t.Errorf("code %#x: %v, want %v", c, got, want)
		}
	}
}

func TestPadFor(t *testing.T) {
	for n := range 9 {
		var h Header
		if got, want := h.PadFor(n), (4-n%4)%4; got != want || int(h.Pad) != want {
			t.Errorf("pad for %d is %d and %d, want %d", n, got, h.Pad, want)
		}
	}
}

// TestFieldsStayApart: values too large for their field spoil no other one.
func TestFieldsStayApart(t *testing.T) {
	b := make([]byte, 256)
	h := Header{Op: OpSend, Pad: 0xff, DestQP: 0xff000001, PSN: 0xff000002, Version: 0xf1}
	n := h.Put(b) + 4 + ICRCLen
	Seal(b[:n])
	var g Header
	if _, d := Decode(b[:n], &g); d != Accepted || g.DestQP != 1 || g.PSN != 2 || g.Version != 1 || g.Pad != 3 || g.BTHAckReq || g.SE {
		t.Errorf("%v %+v", d, g)
	}
	var w AckWriter
	w.Init(b)
	w.QP(&QPBlock{QPN: 0xff000003})
	w.Refusal(&RefusalBlock{QPN: 0xff000004, PSN: 0xff000005, Timer: 0xff})
	var r AckReader
	if d := r.Init(b[:w.Finish()]); d != Accepted {
		t.Fatal(d)
	}
	var q QPBlock
	var f RefusalBlock
	r.Next()
	r.QP(&q)
	r.Next()
	r.Refusal(&f)
	if q.QPN != 3 || f.QPN != 4 || f.PSN != 5 || f.Timer != 31 || f.InOrder {
		t.Errorf("%+v %+v", q, f)
	}
}

func TestAckWriterRoom(t *testing.T) {
	full := PathBlock{Bitmap: [2]uint64{1, 1 << 63}}
	for size := AckHLen; size < 200; size++ {
		b := bytes.Repeat([]byte{0xEE}, size+8)
		var w AckWriter
		w.Init(b[:size])
		for w.Path(&full) || w.Plane(&PlaneBlock{}) || w.QP(&QPBlock{}) || w.Refusal(&RefusalBlock{}) {
		}
		n := w.Finish()
		if n > size || size-n >= 12 || w.Len() != n || !bytes.Equal(b[size:], bytes.Repeat([]byte{0xEE}, 8)) {
			t.Fatalf("%d bytes in room for %d", n, size)
		}
		var r AckReader
		if d := r.Init(b[:n]); d != Accepted {
			t.Fatalf("size %d: %v", size, d)
		}
	}
	var w AckWriter
	w.Init(make([]byte, 1<<16))
	for w.QP(&QPBlock{}) {
	}
	if w.Blocks() != maxBlocks {
		t.Errorf("%d blocks", w.Blocks())
	}
}

// TestNoAnswerIsLongerThanItsRequest: COOKIE answers INIT, ACCEPT answers CONFIRM, whatever the number of planes.
//
// = MR-ASC-006 test
func TestNoAnswerIsLongerThanItsRequest(t *testing.T) {
	for ask, answer := range map[HelloStage]HelloStage{HelloInit: HelloCookie, HelloConfirm: HelloAccept} {
		for n := range MaxPlanes + 1 {
			q, a := Hello{Stage: ask}, Hello{Stage: answer, NumPlanes: uint8(n)}
			if a.Len() > q.Len() {
				t.Errorf("%v with %d planes: %d bytes answer %d", answer, n, a.Len(), q.Len())
			}
		}
	}
}

func TestNoAllocations(t *testing.T) {
	b := make([]byte, 2048)
	h := Header{Op: OpWriteImm}
	var g Header
	check := func(name string, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	n := 0
	check("Put and Seal", func() {
		n = h.Put(b) + 1024 + ICRCLen
		Seal(b[:n])
	})
	check("Decode", func() {
		if _, d := Decode(b[:n], &g); d != Accepted {
			t.Fatal(d)
		}
	})
	var w AckWriter
	path := PathBlock{Bitmap: [2]uint64{1, 1}}
	var plane PlaneBlock
	var qp QPBlock
	var ref RefusalBlock
	var trim TrimBlock
	check("AckWriter", func() {
		w.Init(b)
		if !w.Path(&path) || !w.Plane(&plane) || !w.QP(&qp) || !w.Refusal(&ref) || !w.Trim(&trim) {
			t.Fatal("no room")
		}
		n = w.Finish()
	})
	var r AckReader
	check("AckReader", func() {
		if d := r.Init(b[:n]); d != Accepted {
			t.Fatal(d)
		}
		for typ, ok := r.Next(); ok; typ, ok = r.Next() {
			switch typ {
			case BlockPath:
				r.Path(&path)
			case BlockPlane:
				r.Plane(&plane)
			case BlockQP:
				r.QP(&qp)
			case BlockRefusal:
				r.Refusal(&ref)
			case BlockTrim:
				r.Trim(&trim)
			}
		}
	})
	hello := Hello{Stage: HelloConfirm, NumPlanes: 0}
	check("Hello", func() {
		n := hello.Put(b)
		if d := DecodeHello(b[:n], &hello); d != Accepted {
			t.Fatal(d)
		}
	})
	var p Probe
	check("Probe", func() {
		if d := DecodeProbe(b[:PutProbe(b, &p, 1024)], &p); d != Accepted {
			t.Fatal(d)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, size := range []int{0, 1024, 4096} {
		b.Run(strings.Repeat("K", size/1024)+"B", func(b *testing.B) {
			buf := make([]byte, 8192)
			h := Header{Op: OpWrite}
			n := h.Put(buf) + size + ICRCLen
			Seal(buf[:n])
			b.ReportAllocs()
			for b.Loop() {
				Decode(buf[:n], &h)
			}
		})
	}
}

// TestLongerThanDrawn: what later versions add behind blocks and TLVs is not read.
//
// = MR-WIRE-072 MR-WIRE-082 test
func TestLongerThanDrawn(t *testing.T) {
	b := []byte{3, 0, 0, 0,
		2, 4, 9, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff,
		3, 4, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff,
		4, 5, 0, 5, 0, 0, 0, 6, 0x20, 0, 0, 7, 0x81, 0, 0, 8, 0xff, 0xff, 0xff, 0xff}
	var r AckReader
	if d := r.Init(b); d != Accepted {
		t.Fatal(d)
	}
	var p PlaneBlock
	var q QPBlock
	var f RefusalBlock
	r.Next()
	r.Plane(&p)
	r.Next()
	r.QP(&q)
	r.Next()
	r.Refusal(&f)
	if _, more := r.Next(); more || p != (PlaneBlock{9, 1, 2}) || q != (QPBlock{3, 4}) || f != (RefusalBlock{5, 6, 7, 8, RefuseRNR, 1, true}) {
		t.Errorf("%+v %+v %+v", p, q, f)
	}
	h := []byte{1, 1, 1, 0, 0x80, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 9, 9, 9, 9,
		0x80, 2, 0, 10, 0, 0, 0, 3, 0, 0, 0, 4, 9, 9, 0, 0}
	var m Hello
	if d := DecodeHello(h, &m); d != Accepted || m.NICID != 1 || m.Instance != 2 || m.Tag != 3 || m.EchoTag != 4 {
		t.Errorf("%v %+v", d, m)
	}
}

// TestTrim: trim blocks, and what is left of a trimmed packet.
func TestTrim(t *testing.T) {
	b := make([]byte, 100)
	for i := range b {
		b[i] = 0xFF
	}
	var w AckWriter
	w.Init(b)
	in := [...]TrimBlock{{Path: 0x1234, Seq: 0xFFFFFFFE, LastHop: true}, {Path: 7, Seq: 9}}
	for i := range in {
		if !w.Trim(&in[i]) {
			t.Fatal("no room")
		}
	}
	var r AckReader
	if d := r.Init(b[:w.Finish()]); d != Accepted {
		t.Fatal(d)
	}
	for _, want := range in {
		typ, ok := r.Next()
		var got TrimBlock
		if r.Trim(&got); !ok || typ != BlockTrim || got != want {
			t.Errorf("%v %+v, want %+v", typ, got, want)
		}
	}
	h := Header{Op: OpWrite, PKey: PKeyDefault, DestQP: 5, PSN: 6, Tag: 7, Path: 8, Version: Version, Seq: 9, TS: 10, Len: 100}
	p := make([]byte, 200)
	h.Put(p)
	Seal(p)
	var got Header
	//= MR-REL-060
	if !DecodeTrimmed(p[:BTHLen+MPHLen], &got) || got.Path != 8 || got.Seq != 9 || got.Tag != 7 || got.Len != 0 {
		t.Errorf("%+v", got)
	}
	if DecodeTrimmed(p[:BTHLen+MPHLen-1], &got) {
		t.Error("too short")
	}
	h.Op = OpAck
	h.Put(p)
	if DecodeTrimmed(p, &got) {
		t.Error("a trimmed ACK means nothing")
	}
}
