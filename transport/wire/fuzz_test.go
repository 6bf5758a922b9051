package wire

import (
	"bytes"
	"hash/crc32"
	"testing"
)

// Every fuzzer begins with the golden vectors. Mutated packets would nearly all fail the ICRC, so that FuzzPacket
// seals them anew; what Decode says about a wrong ICRC is covered by the vectors.

func addSeeds(f *testing.F, op func(Opcode) bool) {
	for _, name := range vectorNames {
		for _, v := range readVectors(f, name).Vectors {
			b := v.bytes(f)
			if op == nil {
				f.Add(b)
			} else if len(b) >= MinPacket && op(Opcode(b[0])) {
				f.Add(b[BTHLen+MPHLen : len(b)-ICRCLen])
			}
		}
	}
}

// FuzzPacket also covers everything behind Decode that takes bytes of the network.
//
// = MR-GEN-002 test
func FuzzPacket(f *testing.F) {
	addSeeds(f, nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= ICRCLen {
			b = bytes.Clone(b)
			Seal(b)
		}
		var h Header
		payload, d := Decode(b, &h)
		if d != Accepted {
			if int(d) >= NumDrops || payload != nil {
				t.Fatalf("drop %v with payload %x", d, payload)
			}
			return
		}
		decodeAll(b)

		// Put, payload, pad and Seal give a packet that says the same, of the length that was promised.
		out := make([]byte, len(b)+8)
		pad := int(h.Pad)
		n := h.Put(out)
		if n != h.Size() || n+len(payload)+pad+ICRCLen != len(b) {
			t.Fatalf("Put %d, Size %d, payload %d, pad %d, packet %d", n, h.Size(), len(payload), pad, len(b))
		}
		n += copy(out[n:], payload) + pad + ICRCLen
		Seal(out[:n])
		var again Header
		p2, d := Decode(out[:n], &again)
		norm(&h)
		if d != Accepted || again != h || !bytes.Equal(p2, payload) {
			t.Fatalf("%v\n%+v\n%+v", d, h, again)
		}
	})
}

// norm sets what Put fills in where it is 0.
func norm(h *Header) {
	if h.PKey == 0 {
		h.PKey = PKeyDefault
	}
	if h.Version == 0 {
		h.Version = Version
	}
}

func FuzzAck(f *testing.F) {
	addSeeds(f, func(o Opcode) bool { return o == OpAck })
	f.Fuzz(func(t *testing.T, b []byte) {
		var r AckReader
		if r.Init(b) != Accepted {
			return
		}
		buf := make([]byte, len(b))
		var w AckWriter
		w.Init(buf)
		first := copyBlocks(t, &r, &w)
		n := w.Finish()
		var again AckReader
		if d := again.Init(buf[:n]); d != Accepted {
			t.Fatalf("own ack dropped: %v", d)
		}
		var w2 AckWriter
		w2.Init(make([]byte, n))
		if second := copyBlocks(t, &again, &w2); second != first || again.Unknown != 0 || w2.Len() != n {
			t.Fatalf("%d blocks, then %d", first, second)
		}
		w2.Finish()
		if !bytes.Equal(w2.b[:n], buf[:n]) {
			t.Fatalf("%x\n%x", w2.b[:n], buf[:n])
		}
	})
}

// copyBlocks writes what r reads; there must be room, as blocks never grow.
func copyBlocks(t *testing.T, r *AckReader, w *AckWriter) (n int) {
	for typ, ok := r.Next(); ok; typ, ok = r.Next() {
		before, size := w.Len(), 0
		switch typ {
		case BlockPath:
			var b PathBlock
			r.Path(&b)
			ok, size = w.Path(&b), b.Len()
		case BlockPlane:
			var b PlaneBlock
			r.Plane(&b)
			ok, size = w.Plane(&b), PlaneBlockLen
		case BlockQP:
			var b QPBlock
			r.QP(&b)
			ok, size = w.QP(&b), QPBlockLen
		case BlockRefusal:
			var b RefusalBlock
			r.Refusal(&b)
			ok, size = w.Refusal(&b), RefusalBlockLen
		case BlockTrim:
			var b TrimBlock
			r.Trim(&b)
			ok, size = w.Trim(&b), TrimBlockLen
		}
		if !ok || w.Len()-before != size {
			t.Fatalf("block %v: room %v, %d bytes, want %d", typ, ok, w.Len()-before, size)
		}
		n++
	}
	return n
}

func FuzzHello(f *testing.F) {
	addSeeds(f, func(o Opcode) bool { return o == OpHello })
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Hello
		if DecodeHello(b, &h) != Accepted {
			return
		}
		out := make([]byte, HelloLen)
		n := h.Put(out)
		if n != h.Len() {
			t.Fatalf("Put %d, Len %d", n, h.Len())
		}
		h.Unknown = 0
		if d := DecodeHello(out[:n], &again); d != Accepted || again != h {
			t.Fatalf("%v\n%+v\n%+v", d, h, again)
		}
	})
}

func FuzzProbe(f *testing.F) {
	addSeeds(f, func(o Opcode) bool { return o == OpProbe || o == OpProbeAck || o == OpStale })
	f.Fuzz(func(t *testing.T, b []byte) {
		if tag, d := DecodeStale(b); d == Accepted {
			var out [StaleLen]byte
			if PutStale(out[:], tag); !bytes.Equal(out[:], b[:StaleLen]) {
				t.Fatalf("%x", out)
			}
		}
		var p, again Probe
		if DecodeProbe(b, &p) != Accepted {
			return
		}
		out := make([]byte, len(b))
		if n := PutProbe(out, &p, len(b)); n != len(b) {
			t.Fatalf("%d bytes, want %d", n, len(b))
		}
		if d := DecodeProbe(out, &again); d != Accepted || again != p {
			t.Fatalf("%v\n%+v\n%+v", d, p, again)
		}
	})
}

// FuzzIBTA: the checksum over parts is that over the bytes put together.
func FuzzIBTA(f *testing.F) {
	f.Add(make([]byte, 20), []byte("rest"))
	f.Add(make([]byte, 40), []byte("rest of it"))
	f.Fuzz(func(t *testing.T, ip, rest []byte) {
		if len(ip) != 20 && len(ip) != 40 {
			return
		}
		all := bytes.Repeat([]byte{0xff}, 8)
		all = append(all, ip...)
		udp := []byte{0xc0, 0, 0x12, 0xb7, 0, 0, 0, 0}
		ones := map[int]byte{1: 0xff, 8: 0xff, 10: 0xff, 11: 0xff}
		if len(ip) == 40 {
			ones = map[int]byte{0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff}
		}
		for i, m := range ones {
			all[8+i] |= m
		}
		all = append(append(all, udp[:6]...), 0xff, 0xff)
		n := len(all)
		all = append(all, rest...)
		if len(rest) > 4 {
			all[n+4] = 0xff
		}
		if got, want := IBTA(ip, udp, rest), crc32.ChecksumIEEE(all); got != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
	})
}
