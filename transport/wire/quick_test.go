package wire

import "testing"

func TestQuick(t *testing.T) {
	h := Header{Op: OpWriteImm, Tag: 7, PSN: 5, DestQP: 9, VA: 1 << 40, RKey: 3, Len: 5, SSN: 8, Off: 9, Imm: 0xdeadbeef, Flags: FlagTail}
	b := make([]byte, 200)
	pay := []byte("hello")
	pad := h.PadFor(len(pay))
	n := h.Put(b)
	n += copy(b[n:], pay) + pad + ICRCLen
	Seal(b[:n])
	var g Header
	p, d := Decode(b[:n], &g)
	h.PKey, h.Version = PKeyDefault, Version
	if d != Accepted || string(p) != "hello" || g != h {
		t.Fatal(d, p, g)
	}
	var w AckWriter
	w.Init(b)
	pb := PathBlock{1, 2, 3, 4, 5, [2]uint64{1 << 40, 1}}
	w.Path(&pb)
	w.Plane(&PlaneBlock{1, 2, 3})
	w.QP(&QPBlock{1, 2})
	w.Refusal(&RefusalBlock{1, 2, 3, 4, RefuseRNR, 6, true})
	var r AckReader
	if d := r.Init(b[:w.Finish()]); d != Accepted {
		t.Fatal(d)
	}
	for ty, ok := r.Next(); ok; ty, ok = r.Next() {
		switch ty {
		case BlockPath:
			var q PathBlock
			r.Path(&q)
			if q != pb {
				t.Fatal(q)
			}
		case BlockRefusal:
			var q RefusalBlock
			r.Refusal(&q)
			if q != (RefusalBlock{1, 2, 3, 4, RefuseRNR, 6, true}) {
				t.Fatal(q)
			}
		}
	}
	hl := Hello{Stage: HelloInit, VersionMax: 1, NumPlanes: 2, NICID: 4, Tag: 6}
	hl.Planes[1].Plane = 1
	b = make([]byte, 700)
	var h2 Hello
	if d := DecodeHello(b[:hl.Put(b)], &h2); d != Accepted || h2 != hl {
		t.Fatal(d, h2)
	}
}
