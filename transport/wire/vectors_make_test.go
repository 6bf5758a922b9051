package wire

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// enc writes packets bit by bit and notes what it wrote. It uses no constant and no function of the codec.
type enc struct {
	v    vector
	bits []byte // one bit each, most significant first
}

func (e *enc) put(width int, value uint64) {
	for i := width - 1; i >= 0; i-- {
		e.bits = append(e.bits, byte(value>>i&1))
	}
}

// begin starts a part of the packet.
func (e *enc) begin(header string) {
	e.v.Parts = append(e.v.Parts, part{Header: header, At: len(e.bits) / 8, Fields: map[string]string{}})
}

// f writes a field of the present part.
func (e *enc) f(name string, width int, value uint64) {
	value &= 1<<width - 1
	e.put(width, value)
	e.v.Parts[len(e.v.Parts)-1].Fields[name] = fmt.Sprintf("%#x", value)
}

func (e *enc) f128(name, value string) {
	b, err := hex.DecodeString(value)
	if err != nil || len(b) != 16 {
		panic(value)
	}
	e.raw(b)
	e.v.Parts[len(e.v.Parts)-1].Fields[name] = "0x" + value
}

func (e *enc) raw(b []byte) {
	for _, x := range b {
		e.put(8, uint64(x))
	}
}

func (e *enc) bytes() []byte {
	b := make([]byte, len(e.bits)/8)
	for i, bit := range e.bits {
		b[i/8] = b[i/8]<<1 | bit
	}
	return b
}

// crcBitwise is CRC-32 without a table.
func crcBitwise(b []byte) uint32 {
	c := ^uint32(0)
	for _, x := range b {
		c ^= uint32(x)
		for range 8 {
			c = c>>1 ^ 0xEDB88320&-(c&1)
		}
	}
	return ^c
}

// seal appends pad and ICRC and returns the vector.
func (e *enc) seal(pad int) vector {
	for range pad {
		e.put(8, 0)
	}
	c := crcBitwise(e.bytes())
	for range 4 {
		e.put(8, uint64(c&0xff))
		c >>= 8
	}
	e.v.Hex = hex.EncodeToString(e.bytes())
	return e.v
}

// head is what BTH and MPH of a vector say.
type head struct {
	op, se, ackReq, qpn, psn       uint64
	tag, path, flags, version, seq uint64
	ts                             uint64
}

func start(name string, h head, payload int) *enc {
	e := &enc{v: vector{Name: name}}
	e.begin("BTH")
	e.f("Opcode", 8, h.op)
	e.f("SE", 1, h.se)
	e.f("MigReq", 1, 1)
	e.f("Pad", 2, uint64(-payload)&3)
	e.f("TVer", 4, 0)
	e.f("PKey", 16, 0xffff)
	e.put(8, 0)
	e.f("DestQP", 24, h.qpn)
	e.f("AckReq", 1, h.ackReq)
	e.put(7, 0)
	e.f("PSN", 24, h.psn)
	if h.version == 0 {
		h.version = 1
	}
	e.begin("MPH")
	e.f("Tag", 32, h.tag)
	e.f("Path", 16, h.path)
	e.f("Flags", 8, h.flags)
	e.f("Version", 4, h.version)
	e.put(4, 0)
	e.f("Seq", 32, h.seq)
	e.f("TS", 32, h.ts)
	return e
}

func (e *enc) reth(va, rkey, length uint64) {
	e.begin("RETH")
	e.f("VA", 64, va)
	e.f("RKey", 32, rkey)
	e.f("Len", 32, length)
}

func (e *enc) sndh(ssn, off uint64) {
	e.begin("SNDH")
	e.f("SSN", 32, ssn)
	e.f("Off", 32, off)
}

func (e *enc) rdrh(no, off uint64) {
	e.begin("RDRH")
	e.f("ReadNo", 32, no)
	e.f("ReadOff", 32, off)
}

func (e *enc) atomicETH(va, rkey, swap, compare uint64) {
	e.begin("AtomicETH")
	e.f("VA", 64, va)
	e.f("RKey", 32, rkey)
	e.f("Swap", 64, swap)
	e.f("Compare", 64, compare)
}

func (e *enc) one(header, field string, width int, value uint64) {
	e.begin(header)
	e.f(field, width, value)
}

func (e *enc) payload(n int) vector {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(0x11 + 7*i)
	}
	e.raw(b)
	e.v.Payload = hex.EncodeToString(b)
	return e.seal(-n & 3)
}

func makeVectors() map[string]vectorFile {
	return map[string]vectorFile{
		"data.json":   {"One packet of every opcode that carries data, and of ETHERNET.", dataVectors()},
		"acks.json":   {"ACK packets: every block, alone and together.", ackVectors()},
		"hello.json":  {"The four messages that make an association.", helloVectors()},
		"probes.json": {"PROBE, PROBE_ACK and STALE.", probeVectors()},
		"bad.json":    {"Packets to be dropped, each with its reason. Where several reasons hold, the first of the checks counts.", badVectors()},
	}
}

func dataVectors() []vector {
	h := func(op, n uint64) head {
		return head{op: op, qpn: 0x123450 + n, psn: 0xfffff0 + n, tag: 0xa1b2c3d4, path: 0x0102 + n, seq: 0xfffffff8 + n, ts: 0x89abcdef + n}
	}
	with := func(h head, f func(*head)) head { f(&h); return h }
	var vs []vector
	add := func(v vector) { vs = append(vs, v) }

	e := start("write", h(0xc0, 1), 8)
	e.reth(0x00007f1234567000, 0x01020304, 4096)
	add(e.payload(8))
	e = start("write-last-pad-3-retransmitted", with(h(0xc0, 2), func(h *head) { h.flags, h.ackReq = 0x07, 1 }), 5)
	e.reth(0xfffffffffffffff0, 0xffffffff, 5)
	add(e.payload(5))
	e = start("write-of-nothing", with(h(0xc0, 3), func(h *head) { h.flags = 0x02 }), 0)
	e.reth(0, 0, 0)
	add(e.payload(0))
	e = start("write-imm", with(h(0xc1, 4), func(h *head) { h.flags, h.se = 0x02, 1 }), 6)
	e.reth(0x10, 0x20, 6)
	e.sndh(0x30, 0x40)
	e.one("ImmDt", "Imm", 32, 0x01020304)
	add(e.payload(6))
	e = start("send", h(0xc2, 5), 16)
	e.sndh(0xffffffff, 0x1000)
	add(e.payload(16))
	e = start("send-imm", with(h(0xc3, 6), func(h *head) { h.flags, h.se = 0x12, 1 }), 7)
	e.sndh(9, 0x2000)
	e.one("ImmDt", "Imm", 32, 0xfffefdfc)
	add(e.payload(7))
	e = start("send-inv", with(h(0xc4, 7), func(h *head) { h.flags = 0x0a }), 4)
	e.sndh(10, 0)
	e.one("IETH", "RKey", 32, 0x0a0b0c0d)
	add(e.payload(4))
	e = start("read", with(h(0xc5, 8), func(h *head) { h.flags = 0x06 }), 0)
	e.reth(0x123456789abcdef0, 0x55667788, 0x7fffffff)
	add(e.payload(0))
	e = start("compare-and-swap", with(h(0xc6, 9), func(h *head) { h.flags = 0x06 }), 0)
	e.atomicETH(0x1000, 0x11223344, 0x0102030405060708, 0x1112131415161718)
	add(e.payload(0))
	e = start("fetch-and-add", with(h(0xc7, 10), func(h *head) { h.flags = 0x0e }), 0)
	e.atomicETH(0xfffffffffffffff8, 0x11223344, 1, 0)
	add(e.payload(0))
	e = start("read-response", h(0xc8, 11), 9)
	e.rdrh(0x77, 0x3000)
	add(e.payload(9))
	e = start("atomic-response", with(h(0xc9, 12), func(h *head) { h.flags = 0x02 }), 0)
	e.rdrh(0x78, 0)
	e.one("AtomicAckETH", "Result", 64, 0xfedcba9876543210)
	add(e.payload(0))
	add(start("ethernet", head{op: 0xd8}, 61).payload(61))
	return vs
}

func (e *enc) ackh(count uint64) {
	e.begin("AckH")
	e.f("Count", 8, count)
	e.put(24, 0)
}

func (e *enc) pathBlock(path, highest, echo, hold, ce uint64, bitmap ...uint32) {
	e.begin("PathBlock")
	e.f("Type", 8, 1)
	e.f("Words", 8, uint64(5+len(bitmap)))
	e.f("Path", 16, path)
	e.f("Highest", 32, highest)
	e.f("Echo", 32, echo)
	e.f("Hold", 32, hold)
	e.f("CE", 32, ce)
	p := &e.v.Parts[len(e.v.Parts)-1]
	for _, w := range bitmap {
		e.put(32, uint64(w))
		p.Tail = append(p.Tail, fmt.Sprintf("%#x", w))
	}
}

func (e *enc) planeBlock(plane, n, grant uint64) {
	e.begin("PlaneBlock")
	e.f("Type", 8, 2)
	e.f("Words", 8, 3)
	e.f("Plane", 8, plane)
	e.put(8, 0)
	e.f("Bytes", 32, n)
	e.f("Grant", 32, grant)
}

func (e *enc) qpBlock(qpn, limit uint64) {
	e.begin("QPBlock")
	e.f("Type", 8, 3)
	e.f("Words", 8, 3)
	e.put(16, 0)
	e.put(8, 0)
	e.f("QPN", 24, qpn)
	e.f("Limit", 32, limit)
}

func (e *enc) refusal(path, seq, code, qpn, inOrder, timer, psn uint64) {
	e.begin("RefusalBlock")
	e.f("Type", 8, 4)
	e.f("Words", 8, 4)
	e.f("Path", 16, path)
	e.f("Seq", 32, seq)
	e.f("Code", 8, code)
	e.f("QPN", 24, qpn)
	e.f("InOrder", 1, inOrder)
	e.put(2, 0)
	e.f("Timer", 5, timer)
	e.f("PSN", 24, psn)
}

func ackVectors() []vector {
	h := head{op: 0xd0, tag: 0x31415926, path: 0x0201, ts: 0x1234}
	ack := func(name string, blocks uint64, fill func(*enc)) vector {
		e := start("ack-"+name, h, 0)
		e.ackh(blocks)
		fill(e)
		return e.seal(0)
	}
	vs := []vector{
		ack("empty", 0, func(*enc) {}),
		ack("path-no-bitmap", 1, func(e *enc) { e.pathBlock(0x0102, 0xdeadbeef, 0x01020304, 0x10, 0x20) }),
		ack("path-1-word", 1, func(e *enc) { e.pathBlock(0xffff, 3, 4, 5, 6, 1) }),
		ack("path-2-words", 1, func(e *enc) { e.pathBlock(1, 2, 3, 4, 5, 0, 0x80000000) }),
		ack("path-3-words", 1, func(e *enc) { e.pathBlock(1, 2, 3, 4, 5, 0xffffffff, 0, 1) }),
		ack("path-4-words", 1, func(e *enc) { e.pathBlock(1, 0xffffffff, 3, 4, 5, 0x01234567, 0x89abcdef, 0, 0x80000001) }),
		ack("plane", 1, func(e *enc) { e.planeBlock(15, 0xfffffff0, 0x40000) }),
		ack("qp", 1, func(e *enc) { e.qpBlock(0xabcdef, 0x80000000) }),
		ack("all", 6, func(e *enc) {
			e.pathBlock(7, 8, 9, 10, 11, 0xfffffffe)
			e.pathBlock(0x0107, 18, 19, 20, 21)
			e.planeBlock(0, 1000, 2000)
			e.planeBlock(1, 1001, 2001)
			e.qpBlock(0x11, 64)
			e.refusal(7, 6, 0x20, 0x11, 1, 31, 0x123456)
		}),
	}
	for _, c := range []struct {
		name string
		code uint64
	}{{"rnr", 0x20}, {"later", 0x21}, {"no-qp", 0x22}, {"invalid", 0x61}, {"access", 0x62}, {"op", 0x63}, {"unknown-code", 0x7f}} {
		vs = append(vs, ack("refusal-"+c.name, 1, func(e *enc) { e.refusal(0x0304, 0x05060708, c.code, 0xfedcba, c.code&1, 12, 0xabcdef) }))
	}
	// A block of an unknown type between two known ones is skipped.
	v := ack("unknown-block", 3, func(e *enc) {
		e.planeBlock(2, 3, 4)
		e.raw([]byte{0x99, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
		e.qpBlock(5, 6)
	})
	v.Decode = true
	return append(vs, v)
}

// tlv writes the head of a TLV and begins the part of its value.
func (e *enc) tlv(must, typ, length uint64, header string) {
	e.begin("TLVHead")
	e.f("Must", 1, must)
	e.f("Type", 15, typ)
	e.f("Length", 16, length)
	if header != "" {
		e.begin(header)
	}
}

type helloMsg struct {
	stage, chosen, tag, echo uint64
	cookie                   string
	planes                   int
}

const noCookie = "00000000000000000000000000000000"

func (e *enc) hello(m helloMsg) {
	e.begin("HelloHead")
	e.f("Stage", 8, m.stage)
	e.f("VersionMin", 8, 1)
	e.f("VersionMax", 8, 1)
	e.f("Chosen", 8, m.chosen)
	e.tlv(1, 1, 16, "HelloNIC")
	e.f("NICID", 64, 0x0200c0fffe000001)
	e.f("Instance", 64, 0x1122334455667788)
	e.tlv(1, 2, 8, "HelloTags")
	e.f("Tag", 32, m.tag)
	e.f("EchoTag", 32, m.echo)
	e.tlv(0, 3, 16, "HelloCookie")
	e.f128("Cookie", m.cookie)
	e.tlv(0, 4, 8, "HelloLimits")
	e.f("PathLimit", 16, 256)
	e.put(16, 0)
	e.f("MaxHold", 32, 0x7a12)
	e.tlv(0, 5, 4, "HelloFeatures")
	e.f("Features", 32, 0)
	for i := range m.planes {
		e.tlv(0, 6, 28, "HelloPlane")
		e.f("Plane", 8, uint64(i))
		e.put(8, 0)
		e.f("MTU", 16, 4156)
		e.f("RateMbps", 32, uint64(i)*100000)
		e.f("Grant", 32, 262144)
		e.f128("Addr", fmt.Sprintf("00000000000000000000ffff0a00%02x02", i))
	}
}

// padTo appends the padding TLV that makes the message n bytes long.
func (e *enc) padTo(n int) {
	have := len(e.bits)/8 - 28
	e.tlv(0, 0, uint64(n-have-4), "")
	e.raw(make([]byte, n-have-4))
}

func helloVectors() []vector {
	const cookie = "0123456789abcdeffedcba9876543210"
	h := head{op: 0xd1, ts: 0x55}
	toTag := head{op: 0xd1, tag: 0x1a1a1a1a, ts: 0x56}
	var vs []vector
	e := start("hello-init", h, 0)
	e.hello(helloMsg{1, 0, 0x1a1a1a1a, 0, noCookie, 4})
	e.padTo(592)
	vs = append(vs, e.seal(0))
	e = start("hello-cookie", toTag, 0)
	e.hello(helloMsg{2, 0, 0, 0x1a1a1a1a, cookie, 0})
	vs = append(vs, e.seal(0))
	e = start("hello-confirm", h, 0)
	e.hello(helloMsg{3, 0, 0x1a1a1a1a, 0, cookie, 4})
	e.padTo(592)
	vs = append(vs, e.seal(0))
	e = start("hello-accept-16-planes", toTag, 0)
	e.hello(helloMsg{4, 1, 0x2b2b2b2b, 0x1a1a1a1a, noCookie, 16})
	vs = append(vs, e.seal(0))

	// A TLV of an odd length that nobody knows, in a packet of a version that nobody knows.
	h.version = 9
	e = start("hello-unknown-tlv", h, 0)
	e.hello(helloMsg{1, 0, 0x1a1a1a1a, 0, noCookie, 1})
	e.tlv(0, 0x1234, 5, "")
	e.raw([]byte("hello\x00\x00\x00"))
	v := e.seal(0)
	v.Decode = true
	return append(vs, v)
}

func (e *enc) probe(kind, plane, answer, code, id, qpn, peer, readNo, psn uint64) {
	e.begin("Probe")
	e.f("Kind", 8, kind)
	e.f("Plane", 8, plane)
	e.f("Answer", 8, answer)
	e.f("Code", 8, code)
	e.f("ID", 32, id)
	e.put(8, 0)
	e.f("QPN", 24, qpn)
	e.put(8, 0)
	e.f("PeerQPN", 24, peer)
	e.f("ReadNo", 32, readNo)
	e.put(8, 0)
	e.f("PSN", 24, psn)
	e.put(32, 0)
}

func probeVectors() []vector {
	h := head{op: 0xd2, tag: 0x27182818, path: 0x0304, ts: 0x99}
	a := h
	a.op, a.tag = 0xd3, 0x31415926
	var vs []vector
	e := start("probe-path-padded", h, 0)
	e.probe(1, 3, 0, 0, 0xabcd0001, 0, 0, 0, 0)
	e.raw(make([]byte, 100))
	vs = append(vs, e.seal(0))
	e = start("probe-mtu", h, 1)
	e.probe(2, 3, 0, 0, 0xabcd0002, 0, 0, 0, 0)
	e.raw(make([]byte, 37))
	vs = append(vs, e.seal(3))
	e = start("probe-qp", h, 0)
	e.probe(3, 0, 0, 0, 0xabcd0003, 0x111111, 0x222222, 0x33333333, 0x444444)
	vs = append(vs, e.seal(0))
	e = start("probe-ack-path", a, 0)
	e.probe(1, 3, 0, 0, 0xabcd0001, 0, 0, 0, 0)
	vs = append(vs, e.seal(0))
	for i, name := range []string{"pending", "executed", "failed", "unknown"} {
		code, psn := uint64(0), uint64(0x444444)
		if name == "failed" {
			code, psn = 0x62, 0x444440
		}
		e = start("probe-ack-qp-"+name, a, 0)
		e.probe(3, 0, uint64(i+1), code, 0xabcd0003, 0x111111, 0x222222, 0x33333333, psn)
		vs = append(vs, e.seal(0))
	}
	e = start("stale", head{op: 0xd4, ts: 0x77}, 0)
	e.one("Stale", "Tag", 32, 0x27182818)
	return append(vs, e.seal(0))
}

func badVectors() []vector {
	var vs []vector
	// bad takes the bytes of a good packet, lets f change them, and computes the ICRC anew unless keep.
	bad := func(name, drop string, e *enc, keep bool, f func(b []byte) []byte) {
		b := f(e.bytes())
		if !keep {
			c := crcBitwise(b)
			b = append(b, byte(c), byte(c>>8), byte(c>>16), byte(c>>24))
		}
		vs = append(vs, vector{Name: "bad-" + name, Drop: drop, Hex: hex.EncodeToString(b)})
	}
	same := func(b []byte) []byte { return b }
	set := func(at int, x byte) func([]byte) []byte { return func(b []byte) []byte { b[at] = x; return b } }
	add := func(tail ...byte) func([]byte) []byte { return func(b []byte) []byte { return append(b, tail...) } }
	send := func() *enc {
		e := start("", head{op: 0xc2, qpn: 5, psn: 6, tag: 7, seq: 8}, 4)
		e.sndh(1, 2)
		e.raw([]byte("data"))
		return e
	}
	control := func(op uint64) *enc { return start("", head{op: op, tag: 7}, 0) }

	bad("empty", "length", &enc{}, true, same)
	bad("short", "length", control(0xd0), true, same)
	bad("not-words", "length", send(), false, add(1))
	bad("tver", "tver", send(), false, set(1, 0x41))
	bad("version", "version", send(), false, set(19, 0x20))
	bad("version-before-opcode", "version", send(), false, func(b []byte) []byte { b[0], b[19] = 0xff, 0x20; return b })
	bad("opcode", "opcode", send(), false, set(0, 0xff))
	bad("opcode-of-roce", "opcode", send(), false, set(0, 0x04))
	bad("extension", "extension", control(0xc1), false, add(make([]byte, 24)...))
	bad("pad", "pad", control(0xd0), false, set(1, 0x70))
	bad("payload", "payload", control(0xc5), false, add(make([]byte, 20)...))
	bad("icrc", "icrc", send(), true, add(1, 2, 3, 4))
	vs = append(vs, flip(send(), len("0123")*8+3))

	bad("ack-no-header", "ack-length", control(0xd0), false, same)
	bad("ack-behind-last-block", "ack-length", control(0xd0), false, add(0, 0, 0, 0, 1, 2, 3, 4))
	bad("ack-block-missing", "ack-block", control(0xd0), false, add(1, 0, 0, 0))
	bad("ack-block-of-no-length", "ack-block", control(0xd0), false, add(1, 0, 0, 0, 9, 0, 0, 0))
	bad("ack-block-cut", "ack-block", control(0xd0), false, add(1, 0, 0, 0, 9, 2, 0, 0))
	bad("ack-path-too-short", "ack-block", control(0xd0), false, add(append([]byte{1, 0, 0, 0, 1, 4}, make([]byte, 14)...)...))
	bad("ack-path-too-long", "ack-block", control(0xd0), false, add(append([]byte{1, 0, 0, 0, 1, 10}, make([]byte, 38)...)...))

	hello := func(m helloMsg) *enc {
		e := control(0xd1)
		e.hello(m)
		return e
	}
	good := helloMsg{1, 0, 5, 0, noCookie, 2}
	bad("hello-empty", "hello-length", control(0xd1), false, same)
	bad("hello-tlv-head-cut", "hello-length", hello(good), false, func(b []byte) []byte {
		b[1] |= 0x10 // one byte of pad, so that 3 bytes are left of the next TLV
		return append(b, 0, 0, 0, 0)
	})
	bad("hello-tlv-cut", "hello-length", hello(good), false, add(0, 0, 0, 5, 0, 0, 0, 0))
	bad("hello-tlv-too-short", "hello-length", control(0xd1), false, add(1, 1, 1, 0, 0x80, 1, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8))
	bad("hello-stage-0", "hello-stage", hello(helloMsg{cookie: noCookie}), false, same)
	bad("hello-stage-5", "hello-stage", hello(helloMsg{stage: 5, cookie: noCookie}), false, same)
	bad("hello-must-understand", "hello-must-understand", hello(good), false, add(0x80, 0x99, 0, 0))
	bad("hello-nic-twice", "hello-twice", hello(good), false, add(append([]byte{0x80, 1, 0, 16}, make([]byte, 16)...)...))
	bad("hello-plane-twice", "hello-twice", hello(good), false, add(append([]byte{0, 6, 0, 28, 1}, make([]byte, 27)...)...))
	bad("hello-no-nic", "hello-missing", control(0xd1), false, add(1, 1, 1, 0))
	bad("hello-plane-16", "hello-planes", hello(good), false, add(append([]byte{0, 6, 0, 28, 16}, make([]byte, 27)...)...))

	bad("probe-short", "probe", control(0xd2), false, add(make([]byte, 24)...))
	bad("probe-ack-short", "probe", control(0xd3), false, same)
	bad("stale-short", "stale", control(0xd4), false, same)
	return vs
}

// flip is a good packet with one bit changed after the ICRC was computed.
func flip(e *enc, bit int) vector {
	good := e.seal(0)
	b, err := hex.DecodeString(good.Hex)
	if err != nil {
		panic(err)
	}
	b[bit/8] ^= 0x80 >> (bit % 8)
	return vector{Name: "bad-one-bit", Drop: "icrc", Hex: strings.ToLower(hex.EncodeToString(b))}
}
