package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/metaroce/metaroce/internal/serial"
)

// The golden vectors in spec/vectors are for everybody who builds this protocol. They are made here by an encoder that
// knows the layouts by itself, bit by bit (vectors_make_test.go), never by the codec under test; that they agree
// with formats.yaml is checked by tools/specgen.

var update = flag.Bool("update", false, "write spec/vectors anew")

const vectorDir = "../../spec/vectors"

// vectorFile is a file of spec/vectors.
type vectorFile struct {
	About   string   `json:"about"`
	Vectors []vector `json:"vectors"`
}

// vector is one packet, BTH to ICRC.
type vector struct {
	Name    string `json:"name"`
	Hex     string `json:"hex"`
	Drop    string `json:"drop,omitempty"`    // not accepted, for this reason
	Decode  bool   `json:"decode,omitempty"`  // only to be decoded: nobody sends it like this today
	Parts   []part `json:"parts,omitempty"`   // headers, blocks and TLVs in order
	Payload string `json:"payload,omitempty"` // what is not in parts, without pad
}

// part is a header of formats.yaml at a place in the packet; values are hexadecimal, without reserved fields.
type part struct {
	Header string            `json:"header"`
	At     int               `json:"at"`
	Fields map[string]string `json:"fields"`
	Tail   []string          `json:"tail,omitempty"`
}

func (p *part) u(t testing.TB, field string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(p.Fields[field], 0, 64)
	if err != nil {
		t.Fatalf("%s.%s: %v", p.Header, field, err)
	}
	return v
}

func (v *vector) bytes(t testing.TB) []byte {
	t.Helper()
	b, err := hex.DecodeString(v.Hex)
	if err != nil {
		t.Fatalf("%s: %v", v.Name, err)
	}
	return b
}

func (v *vector) part(header string) *part {
	for i := range v.Parts {
		if v.Parts[i].Header == header {
			return &v.Parts[i]
		}
	}
	return nil
}

func readVectors(t testing.TB, name string) vectorFile {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(vectorDir, name))
	if err != nil {
		t.Fatal(err)
	}
	var f vectorFile
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return f
}

var vectorNames = []string{"data.json", "acks.json", "hello.json", "probes.json", "bad.json"}

func TestVectorsAreWhatTheBitwiseEncoderMakes(t *testing.T) {
	for name, f := range makeVectors() {
		want, err := json.MarshalIndent(f, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, '\n')
		path := filepath.Join(vectorDir, name)
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs; `go test ./transport/wire -update` writes it anew", path)
		}
	}
}

// TestVectors holds the codec against every golden vector, both ways.
//
// = MR-WIRE-006 MR-WIRE-007 MR-WIRE-010 MR-WIRE-024 MR-WIRE-033 MR-WIRE-042 MR-WIRE-050 MR-WIRE-051 MR-WIRE-052 test
// = MR-WIRE-060 MR-WIRE-061 MR-WIRE-070 MR-WIRE-071 MR-WIRE-073 MR-WIRE-074 test
// = MR-WIRE-080 MR-WIRE-081 MR-WIRE-083 MR-WIRE-090 test
func TestVectors(t *testing.T) {
	drops, ops := map[string]bool{}, map[Opcode]bool{}
	for _, name := range vectorNames {
		for _, v := range readVectors(t, name).Vectors {
			t.Run(v.Name, func(t *testing.T) {
				if v.Drop != "" {
					drops[v.Drop] = true
					if got := decodeAll(v.bytes(t)); got.String() != v.Drop {
						t.Errorf("dropped for %q, want %q", got, v.Drop)
					}
					return
				}
				ops[checkVector(t, &v)] = true
			})
		}
	}
	for o := opBase; o < 256; o++ {
		if opTable[o-opBase].known && !ops[Opcode(o)] {
			t.Errorf("no vector for %v", Opcode(o))
		}
	}
	for d := Accepted + 1; d < numDrops; d++ {
		if !drops[d.String()] {
			t.Errorf("no vector for drop %q", d)
		}
	}
}

// decodeAll decodes a packet and, where it has a structure, its payload.
func decodeAll(b []byte) Drop {
	var h Header
	payload, d := Decode(b, &h)
	if d != Accepted {
		return d
	}
	switch h.Op {
	case OpAck:
		var r AckReader
		return r.Init(payload)
	case OpHello:
		var m Hello
		return DecodeHello(payload, &m)
	case OpProbe, OpProbeAck:
		var p Probe
		return DecodeProbe(payload, &p)
	case OpStale:
		_, d := DecodeStale(payload)
		return d
	default:
		return Accepted
	}
}

// checkVector decodes a vector and compares with its fields, then encodes its fields and compares with its bytes.
func checkVector(t *testing.T, v *vector) Opcode {
	raw := v.bytes(t)
	want := headerOf(t, v)
	var got Header
	payload, d := Decode(raw, &got)
	if d != Accepted {
		t.Fatalf("dropped: %v", d)
	}
	if got != want {
		t.Errorf("decoded\n%+v, want\n%+v", got, want)
	}

	body := checkPayload(t, v, want.Op, payload)
	if v.Decode || t.Failed() {
		return got.Op
	}
	b := make([]byte, 2048)
	for i := range b {
		b[i] = 0xEE // what was in the buffer must not matter
	}
	h := want
	pad := h.PadFor(len(body))
	n := h.Put(b)
	n += copy(b[n:], body)
	n += copy(b[n:], make([]byte, pad)) + ICRCLen
	Seal(b[:n])
	if !bytes.Equal(b[:n], raw) {
		t.Errorf("encoded\n%x, want\n%x", b[:n], raw)
	}
	return got.Op
}

// checkPayload compares a payload with the vector and returns the codec's own encoding of it.
func checkPayload(t *testing.T, v *vector, op Opcode, payload []byte) []byte {
	buf := make([]byte, 2048)
	switch op {
	case OpAck:
		checkAckBlocks(t, v, payload)
		return buf[:writeAck(t, v, buf)]
	case OpHello:
		var got Hello
		if d := DecodeHello(payload, &got); d != Accepted {
			t.Fatalf("dropped: %v", d)
		}
		want := helloOf(t, v)
		want.Unknown = got.Unknown
		if got != want {
			t.Errorf("decoded\n%+v, want\n%+v", got, want)
		}
		if n := got.Len(); !v.Decode && n != len(payload) {
			t.Errorf("Len is %d, message has %d bytes", n, len(payload))
		}
		return buf[:want.Put(buf)]
	case OpProbe, OpProbeAck:
		var got Probe
		if d := DecodeProbe(payload, &got); d != Accepted {
			t.Fatalf("dropped: %v", d)
		}
		if want := probeOf(t, v); got != want {
			t.Errorf("decoded\n%+v, want\n%+v", got, want)
		}
		return buf[:PutProbe(buf, &got, len(payload))]
	case OpStale:
		tag, d := DecodeStale(payload)
		if want := uint32(v.part("Stale").u(t, "Tag")); d != Accepted || tag != want {
			t.Errorf("tag %#x (%v), want %#x", tag, d, want)
		}
		return buf[:PutStale(buf, tag)]
	default:
	}
	if hex.EncodeToString(payload) != v.Payload {
		t.Errorf("payload %x, want %s", payload, v.Payload)
	}
	return payload
}

func checkAckBlocks(t *testing.T, v *vector, payload []byte) {
	var r AckReader
	if d := r.Init(payload); d != Accepted {
		t.Fatalf("dropped: %v", d)
	}
	for i := range v.Parts {
		p := &v.Parts[i]
		switch p.Header {
		case "PathBlock", "PlaneBlock", "QPBlock", "RefusalBlock":
		default:
			continue
		}
		typ, ok := r.Next()
		if !ok || uint64(typ) != p.u(t, "Type") {
			t.Fatalf("block %v %v, want %s", typ, ok, p.Header)
		}
		var got, want any
		switch typ {
		case BlockPath:
			var b PathBlock
			r.Path(&b)
			got, want = b, pathOf(t, p)
		case BlockPlane:
			var b PlaneBlock
			r.Plane(&b)
			got, want = b, planeOf(t, p)
		case BlockQP:
			var b QPBlock
			r.QP(&b)
			got, want = b, qpOf(t, p)
		case BlockRefusal:
			var b RefusalBlock
			r.Refusal(&b)
			got, want = b, refusalOf(t, p)
		case BlockTrim: // newer than the vectors
			t.Errorf("a trim block")
		}
		if got != want {
			t.Errorf("block %+v, want %+v", got, want)
		}
	}
	if typ, ok := r.Next(); ok {
		t.Errorf("another block %v", typ)
	}
	if want := map[bool]int{true: 1}[v.Decode]; r.Unknown != want {
		t.Errorf("%d unknown blocks, want %d", r.Unknown, want)
	}
}

func writeAck(t *testing.T, v *vector, buf []byte) int {
	var w AckWriter
	w.Init(buf)
	for i := range v.Parts {
		p := &v.Parts[i]
		ok := true
		switch p.Header {
		case "PathBlock":
			b := pathOf(t, p)
			ok = w.Path(&b)
		case "PlaneBlock":
			b := planeOf(t, p)
			ok = w.Plane(&b)
		case "QPBlock":
			b := qpOf(t, p)
			ok = w.QP(&b)
		case "RefusalBlock":
			b := refusalOf(t, p)
			ok = w.Refusal(&b)
		}
		if !ok {
			t.Fatalf("no room for %s", p.Header)
		}
	}
	return w.Finish()
}

func pathOf(t testing.TB, p *part) PathBlock {
	b := PathBlock{Path: uint16(p.u(t, "Path")), Highest: uint32(p.u(t, "Highest")), Echo: uint32(p.u(t, "Echo")),
		Hold: uint32(p.u(t, "Hold")), CE: uint32(p.u(t, "CE"))}
	for i, s := range p.Tail {
		w, err := strconv.ParseUint(s, 0, 32)
		if err != nil {
			t.Fatal(err)
		}
		b.Bitmap[i/2] |= w << (i % 2 * 32)
	}
	return b
}

func planeOf(t testing.TB, p *part) PlaneBlock {
	return PlaneBlock{Plane: uint8(p.u(t, "Plane")), Bytes: uint32(p.u(t, "Bytes")), Grant: uint32(p.u(t, "Grant"))}
}

func qpOf(t testing.TB, p *part) QPBlock {
	return QPBlock{QPN: uint32(p.u(t, "QPN")), Limit: uint32(p.u(t, "Limit"))}
}

func refusalOf(t testing.TB, p *part) RefusalBlock {
	return RefusalBlock{Path: uint16(p.u(t, "Path")), Seq: uint32(p.u(t, "Seq")), QPN: uint32(p.u(t, "QPN")),
		PSN: serial.PSN(p.u(t, "PSN")), Code: RefusalCode(p.u(t, "Code")), Timer: uint8(p.u(t, "Timer")),
		InOrder: p.u(t, "InOrder") != 0}
}

func probeOf(t testing.TB, v *vector) Probe {
	p := v.part("Probe")
	return Probe{Kind: ProbeKind(p.u(t, "Kind")), Plane: uint8(p.u(t, "Plane")), ID: uint32(p.u(t, "ID")),
		QPN: uint32(p.u(t, "QPN")), PeerQPN: uint32(p.u(t, "PeerQPN")), ReadNo: uint32(p.u(t, "ReadNo")),
		PSN: uint32(p.u(t, "PSN")), Answer: Answer(p.u(t, "Answer")), Code: RefusalCode(p.u(t, "Code"))}
}

func helloOf(t testing.TB, v *vector) Hello {
	var h Hello
	for i := range v.Parts {
		p := &v.Parts[i]
		switch p.Header {
		case "HelloHead":
			h.Stage, h.VersionMin = HelloStage(p.u(t, "Stage")), uint8(p.u(t, "VersionMin"))
			h.VersionMax, h.Chosen = uint8(p.u(t, "VersionMax")), uint8(p.u(t, "Chosen"))
		case "HelloNIC":
			h.NICID, h.Instance = p.u(t, "NICID"), p.u(t, "Instance")
		case "HelloTags":
			h.Tag, h.EchoTag = uint32(p.u(t, "Tag")), uint32(p.u(t, "EchoTag"))
		case "HelloCookie":
			mustHex(t, h.Cookie[:], p.Fields["Cookie"])
		case "HelloLimits":
			h.PathLimit, h.MaxHold = uint16(p.u(t, "PathLimit")), uint32(p.u(t, "MaxHold"))
		case "HelloFeatures":
			h.Features = uint32(p.u(t, "Features"))
		case "HelloPlane":
			q := &h.Planes[h.NumPlanes]
			h.NumPlanes++
			q.Plane, q.MTU = uint8(p.u(t, "Plane")), uint16(p.u(t, "MTU"))
			q.RateMbps, q.Grant = uint32(p.u(t, "RateMbps")), uint32(p.u(t, "Grant"))
			mustHex(t, q.Addr[:], p.Fields["Addr"])
		}
	}
	return h
}

func mustHex(t testing.TB, dst []byte, s string) {
	t.Helper()
	if n, err := hex.Decode(dst, []byte(s[2:])); err != nil || n != len(dst) {
		t.Fatalf("%q: %v", s, err)
	}
}

func headerOf(t testing.TB, v *vector) Header {
	b, m := v.part("BTH"), v.part("MPH")
	h := Header{Op: Opcode(b.u(t, "Opcode")), SE: b.u(t, "SE") != 0, Pad: uint8(b.u(t, "Pad")), PKey: uint16(b.u(t, "PKey")),
		DestQP: uint32(b.u(t, "DestQP")), BTHAckReq: b.u(t, "AckReq") != 0, PSN: serial.PSN(b.u(t, "PSN")),
		Tag: uint32(m.u(t, "Tag")), Path: uint16(m.u(t, "Path")), Flags: Flags(m.u(t, "Flags")),
		Version: uint8(m.u(t, "Version")), Seq: uint32(m.u(t, "Seq")), TS: uint32(m.u(t, "TS"))}
	if p := v.part("RETH"); p != nil {
		h.VA, h.RKey, h.Len = p.u(t, "VA"), uint32(p.u(t, "RKey")), uint32(p.u(t, "Len"))
	}
	if p := v.part("SNDH"); p != nil {
		h.SSN, h.Off = uint32(p.u(t, "SSN")), uint32(p.u(t, "Off"))
	}
	if p := v.part("RDRH"); p != nil {
		h.ReadNo, h.ReadOff = uint32(p.u(t, "ReadNo")), uint32(p.u(t, "ReadOff"))
	}
	if p := v.part("AtomicETH"); p != nil {
		h.VA, h.RKey, h.Swap, h.Compare = p.u(t, "VA"), uint32(p.u(t, "RKey")), p.u(t, "Swap"), p.u(t, "Compare")
	}
	if p := v.part("AtomicAckETH"); p != nil {
		h.Result = p.u(t, "Result")
	}
	if p := v.part("ImmDt"); p != nil { // the bytes as they lie in memory
		h.Imm = binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, uint32(p.u(t, "Imm"))))
	}
	if p := v.part("IETH"); p != nil {
		h.Inv = uint32(p.u(t, "RKey"))
	}
	return h
}
