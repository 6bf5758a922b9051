package ib

import (
	"encoding/hex"
	"fmt"
)

// golden is one RoCEv2 packet, from the IP header to the ICRC.
type golden struct {
	Name    string       `json:"name"`
	IP      string       `json:"ip"`
	UDP     string       `json:"udp"`
	Hex     string       `json:"hex"` // BTH to ICRC
	Parts   []goldenPart `json:"parts"`
	Payload string       `json:"payload,omitempty"` // without pad
}

// goldenPart is a header of IBTA at a place in Hex; values are hexadecimal, without reserved fields.
type goldenPart struct {
	Header string            `json:"header"`
	At     int               `json:"at"`
	Fields map[string]string `json:"fields"`
}

type goldenFile struct {
	About   string   `json:"about"`
	Vectors []golden `json:"vectors"`
}

// bitWriter writes packets bit by bit and notes what it wrote. It uses no constant and no function of the codec.
type bitWriter struct {
	v    golden
	ip   []byte
	udp  []byte
	bits []byte // one bit each, most significant first
}

func (w *bitWriter) put(width int, value uint64) {
	for i := width - 1; i >= 0; i-- {
		w.bits = append(w.bits, byte(value>>i&1))
	}
}

func (w *bitWriter) begin(header string) {
	w.v.Parts = append(w.v.Parts, goldenPart{Header: header, At: len(w.bits) / 8, Fields: map[string]string{}})
}

func (w *bitWriter) f(name string, width int, value uint64) {
	value &= 1<<width - 1
	w.put(width, value)
	w.v.Parts[len(w.v.Parts)-1].Fields[name] = fmt.Sprintf("%#x", value)
}

func (w *bitWriter) bytes() []byte {
	b := make([]byte, len(w.bits)/8)
	for i, bit := range w.bits {
		b[i/8] = b[i/8]<<1 | bit
	}
	return b
}

// wireHead is what BTH of a vector says.
type wireHead struct {
	op, se, becn, qpn, ack, psn uint64
}

func beginPacket(name string, h wireHead, payload int) *bitWriter {
	w := &bitWriter{v: golden{Name: name}}
	w.begin("RoCEBTH")
	w.f("Opcode", 8, h.op)
	w.f("SE", 1, h.se)
	w.f("MigReq", 1, 1)
	w.f("Pad", 2, uint64(-payload)&3)
	w.f("TVer", 4, 0)
	w.f("PKey", 16, 0xffff)
	w.f("FECN", 1, 0)
	w.f("BECN", 1, h.becn)
	w.put(6, 0)
	w.f("DestQP", 24, h.qpn)
	w.f("AckReq", 1, h.ack)
	w.put(7, 0)
	w.f("PSN", 24, h.psn)
	return w
}

func (w *bitWriter) reth(va, rkey, length uint64) *bitWriter {
	w.begin("RETH")
	w.f("VA", 64, va)
	w.f("RKey", 32, rkey)
	w.f("Len", 32, length)
	return w
}

func (w *bitWriter) atomic(va, rkey, swap, compare uint64) *bitWriter {
	w.begin("AtomicETH")
	w.f("VA", 64, va)
	w.f("RKey", 32, rkey)
	w.f("Swap", 64, swap)
	w.f("Compare", 64, compare)
	return w
}

func (w *bitWriter) aeth(syndrome, msn uint64) *bitWriter {
	w.begin("AETH")
	w.f("Syndrome", 8, syndrome)
	w.f("MSN", 24, msn)
	return w
}

func (w *bitWriter) deth(qkey, qpn uint64) *bitWriter {
	w.begin("DETH")
	w.f("QKey", 32, qkey)
	w.put(8, 0)
	w.f("SrcQP", 24, qpn)
	return w
}

func (w *bitWriter) one(header, field string, width int, value uint64) *bitWriter {
	w.begin(header)
	w.f(field, width, value)
	return w
}

// over says how the packet travels: IPv4 with an identification, or IPv6 with a flow label.
type over struct {
	v6       bool
	tos      byte
	id, port uint16
	flow     uint32
	group    bool // to a multicast group
}

// end appends n bytes of payload, pad and ICRC, and writes the headers in front.
func (w *bitWriter) end(o over, n int) golden {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(0x21 + 5*i)
	}
	if n > 0 {
		w.v.Payload = hex.EncodeToString(b)
	}
	for _, x := range b {
		w.put(8, uint64(x))
	}
	for range -n & 3 {
		w.put(8, 0)
	}
	data := w.bytes()
	w.outer(o, len(data)+4)
	c := w.icrc(data)
	data = append(data, byte(c), byte(c>>8), byte(c>>16), byte(c>>24))
	w.v.IP, w.v.UDP, w.v.Hex = hex.EncodeToString(w.ip), hex.EncodeToString(w.udp), hex.EncodeToString(data)
	return w.v
}

func (w *bitWriter) outer(o over, n int) {
	n += 8
	w.udp = []byte{byte(o.port >> 8), byte(o.port), 0x12, 0xb7, byte(n >> 8), byte(n), 0, 0}
	if o.v6 {
		w.ip = []byte{0x60 | o.tos>>4, o.tos<<4 | byte(o.flow>>16), byte(o.flow >> 8), byte(o.flow), byte(n >> 8), byte(n), 17, 64}
		src, dst := [16]byte{0: 0xfd, 15: 1}, [16]byte{0: 0xfd, 15: 2}
		if o.group {
			dst = [16]byte{0: 0xff, 1: 0x0e, 15: 0x77}
		}
		w.ip = append(append(w.ip, src[:]...), dst[:]...)
		return
	}
	n += 20
	w.ip = []byte{0x45, o.tos, byte(n >> 8), byte(n), byte(o.id >> 8), byte(o.id), 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}
	if o.group {
		copy(w.ip[16:], []byte{239, 1, 2, 3})
	}
	s := 0
	for i := 0; i < 20; i += 2 {
		s += int(w.ip[i])<<8 | int(w.ip[i+1])
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	w.ip[10], w.ip[11] = byte(^s>>8), byte(^s)
}

// icrc is CRC-32 without a table over eight bytes of ones and all headers, what may change on the way being ones.
func (w *bitWriter) icrc(data []byte) uint32 {
	b := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	at := len(b)
	b = append(b, w.ip...)
	if len(w.ip) == 20 {
		b[at+1], b[at+8], b[at+10], b[at+11] = 0xff, 0xff, 0xff, 0xff // type of service, time to live, checksum
	} else {
		b[at], b[at+1], b[at+2], b[at+3], b[at+7] = 0x6f, 0xff, 0xff, 0xff, 0xff // traffic class, flow label, hop limit
	}
	at = len(b)
	b = append(b, w.udp...)
	b[at+6], b[at+7] = 0xff, 0xff
	at = len(b)
	b = append(b, data...)
	b[at+4] = 0xff // FECN, BECN
	c := ^uint32(0)
	for _, x := range b {
		c ^= uint32(x)
		for range 8 {
			c = c>>1 ^ 0xEDB88320&-(c&1)
		}
	}
	return ^c
}

func makeGolden() map[string]goldenFile {
	return map[string]goldenFile{
		"rocev2-rc.json":  {"RoCEv2 packets of RC, one of every opcode, and a congestion notification: IP and UDP header, then BTH to ICRC.", goldenRC()},
		"rocev2-uc.json":  {"RoCEv2 packets of UC, one of every opcode: IP and UDP header, then BTH to ICRC.", goldenUC()},
		"rocev2-xrc.json": {"RoCEv2 packets of XRC, one of every opcode: IP and UDP header, then BTH to ICRC.", goldenXRC()},
		"rocev2-ud.json":  {"RoCEv2 packets of UD, to one node and to a group: IP and UDP header, then BTH to ICRC.", goldenUD()},
	}
}

// The payloads are longer than 64 bytes or not there: Wireshark tries short SENDs of RC as other protocols.
func goldenRC() []golden {
	v4 := over{tos: 0x6a, id: 0x1234, port: 0xc123}
	v6 := over{v6: true, tos: 0x02, flow: 0x54321, port: 0xd00d}
	psn := uint64(0xfffff8)
	h := func(op uint64) wireHead {
		psn = (psn + 1) & 0xffffff
		return wireHead{op: op, qpn: 0x11 + op, psn: psn, ack: op & 1}
	}
	const mtu = 256
	var vs []golden
	add := func(v golden) { vs = append(vs, v) }
	solicited := h(0x02)
	solicited.se = 1

	add(beginPacket("rc-send-first", h(0x00), mtu).end(v4, mtu))
	add(beginPacket("rc-send-middle", h(0x01), mtu).end(v4, mtu))
	add(beginPacket("rc-send-last-solicited", solicited, 69).end(v4, 69))
	add(beginPacket("rc-send-last-imm", h(0x03), 70).one("ImmDt", "Imm", 32, 0x01020304).end(v6, 70))
	add(beginPacket("rc-send-only", h(0x04), 71).end(v6, 71))
	add(beginPacket("rc-send-only-imm", h(0x05), 72).one("ImmDt", "Imm", 32, 0xfffefdfc).end(v4, 72))
	add(beginPacket("rc-write-first", h(0x06), mtu).reth(0x00007f1234567000, 0x01020304, 2*mtu+73).end(v4, mtu))
	add(beginPacket("rc-write-middle", h(0x07), mtu).end(v4, mtu))
	add(beginPacket("rc-write-last", h(0x08), 73).end(v4, 73))
	add(beginPacket("rc-write-last-imm", h(0x09), 74).one("ImmDt", "Imm", 32, 7).end(v4, 74))
	add(beginPacket("rc-write-only", h(0x0a), 75).reth(0xfffffffffffff000, 0xffffffff, 75).end(v6, 75))
	add(beginPacket("rc-write-only-imm", h(0x0b), 76).reth(0x10, 0x20, 76).one("ImmDt", "Imm", 32, 8).end(v4, 76))
	add(beginPacket("rc-write-of-nothing", h(0x0a), 0).reth(0, 0, 0).end(v4, 0))
	add(beginPacket("rc-read-request", h(0x0c), 0).reth(0x123456789abcdef0, 0x55667788, 0x7fffffff).end(v4, 0))
	add(beginPacket("rc-read-response-first", h(0x0d), mtu).aeth(0x1f, 0x010203).end(v4, mtu))
	add(beginPacket("rc-read-response-middle", h(0x0e), mtu).end(v4, mtu))
	add(beginPacket("rc-read-response-last", h(0x0f), 77).aeth(0x1f, 0x010204).end(v4, 77))
	add(beginPacket("rc-read-response-only", h(0x10), 78).aeth(0x1f, 0x010205).end(v6, 78))
	add(beginPacket("rc-ack", h(0x11), 0).aeth(0x1f, 0xffffff).end(v6, 0))
	for _, n := range []struct {
		name     string
		syndrome uint64
	}{{"credits", 0x0c}, {"nak-rnr", 0x2c}, {"nak-sequence", 0x60}, {"nak-invalid", 0x61}, {"nak-access", 0x62}, {"nak-operation", 0x63}} {
		add(beginPacket("rc-ack-"+n.name, h(0x11), 0).aeth(n.syndrome, 9).end(v4, 0))
	}
	add(beginPacket("rc-atomic-ack", h(0x12), 0).aeth(0x1f, 10).one("AtomicAckETH", "Result", 64, 0xfedcba9876543210).end(v4, 0))
	add(beginPacket("rc-compare-and-swap", h(0x13), 0).atomic(0x1000, 0x11223344, 0x0102030405060708, 0x1112131415161718).end(v4, 0))
	add(beginPacket("rc-fetch-and-add", h(0x14), 0).atomic(0xfffffffffffffff8, 0x11223344, 1, 0).end(v6, 0))
	add(beginPacket("rc-send-last-inv", h(0x16), 79).one("IETH", "RKey", 32, 0x0a0b0c0d).end(v4, 79))
	add(beginPacket("rc-send-only-inv", h(0x17), 80).one("IETH", "RKey", 32, 0x0a0b0c0e).end(v4, 80))
	cnp := beginPacket("cnp", wireHead{op: 0x81, becn: 1, qpn: 0x1234}, 16)
	cnp.begin("CNP")
	cnp.put(64, 0)
	cnp.put(64, 0)
	add(cnp.end(over{tos: 0xc0, id: 1, port: 0xc123}, 0))
	return vs
}

func goldenUD() []golden {
	v4 := over{id: 0xabcd, port: 0xcafe}
	v6 := over{v6: true, flow: 0xfffff, port: 0xffff}
	g4, g6 := v4, v6
	g4.group, g6.group = true, true
	return []golden{
		beginPacket("ud-send", wireHead{op: 0x64, qpn: 0x21, psn: 1}, 97).deth(0x11111111, 0x22).end(v4, 97),
		beginPacket("ud-send-ipv6-solicited", wireHead{op: 0x64, se: 1, qpn: 0x21, psn: 2}, 98).deth(0xffffffff, 0xfffffe).end(v6, 98),
		beginPacket("ud-send-of-nothing", wireHead{op: 0x64, qpn: 0x21, psn: 3}, 0).deth(0, 0x22).end(v4, 0),
		beginPacket("ud-send-imm", wireHead{op: 0x65, qpn: 0x21, psn: 4}, 99).deth(0x11111111, 0x22).one("ImmDt", "Imm", 32, 0x01020304).end(v4, 99),
		beginPacket("ud-send-to-group", wireHead{op: 0x64, qpn: 0xffffff, psn: 5}, 100).deth(0x0b1b, 0x22).end(g4, 100),
		beginPacket("ud-send-to-ipv6-group", wireHead{op: 0x64, qpn: 0xffffff, psn: 0xffffff}, 101).deth(0x0b1b, 0x22).end(g6, 101),
	}
}
