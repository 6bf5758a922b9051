package ib

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

var update = flag.Bool("update", false, "write the RoCEv2 files of spec/vectors anew")

const vectorDir = "../../../spec/vectors"

// TestGoldenFiles: the files are what the bitwise encoder makes.
func TestGoldenFiles(t *testing.T) {
	for name, f := range makeGolden() {
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
			t.Errorf("%s differs; `go test ./transport/wire/ib -update` writes it anew", path)
		}
	}
}

// TestGoldenPackets holds the codec against every golden packet, both ways.
func TestGoldenPackets(t *testing.T) {
	var s Summer
	seen := map[Opcode]bool{}
	for _, f := range makeGolden() {
		for i := range f.Vectors {
			v := &f.Vectors[i]
			p := vector{v.Name, v.IP, v.UDP, v.Hex, ""}.packet(t)
			var h Header
			payload, d := Decode(p.Data, &h)
			//= MR-COEX-010 MR-COEX-011
			if d != Accepted || !s.Good(p) {
				t.Errorf("%s: %v, ICRC %v", v.Name, d, s.Good(p))
				continue
			}
			seen[Opcode(h.code())] = true
			if want := v.header(t); h != want {
				t.Errorf("%s: decoded\n%+v, want\n%+v", v.Name, h, want)
			}
			if h.Op != CNP && hex.EncodeToString(payload) != v.Payload {
				t.Errorf("%s: payload %x, want %s", v.Name, payload, v.Payload)
			}
			want := bytes.Clone(p.Data)
			p.Data = make([]byte, len(want))
			g := v.header(t)
			g.PadFor(len(payload))
			copy(p.Data[g.Put(p.Data):], payload)
			if s.Seal(p); !bytes.Equal(p.Data, want) {
				t.Errorf("%s: encoded\n%x, want\n%x", v.Name, p.Data, want)
			}
		}
	}
	for o := range 256 {
		if Opcode(o).Known() && !seen[Opcode(o)] {
			t.Errorf("no golden packet of %v", Opcode(o))
		}
	}
}

// split takes a connected service's opcode apart.
func split(code uint64) (Opcode, Service) {
	switch code & 0xe0 {
	case 0x20:
		return Opcode(code & 0x1f), UC
	case 0xa0:
		return Opcode(code & 0x1f), XRC
	}
	return Opcode(code), RC
}

// header is what the parts of a golden packet say.
func (v *golden) header(t *testing.T) (h Header) {
	u := func(i int, field string) uint64 {
		x, err := strconv.ParseUint(v.Parts[i].Fields[field], 0, 64)
		if err != nil {
			t.Fatalf("%s: %s: %v", v.Name, field, err)
		}
		return x
	}
	for i := range v.Parts {
		switch v.Parts[i].Header {
		case "RoCEBTH":
			h.Op, h.Service = split(u(i, "Opcode"))
			h.SE, h.NoMig, h.Pad = u(i, "SE") != 0, u(i, "MigReq") == 0, uint8(u(i, "Pad"))
			h.PKey, h.FECN, h.BECN = uint16(u(i, "PKey")), u(i, "FECN") != 0, u(i, "BECN") != 0
			h.DestQP, h.AckReq, h.PSN = uint32(u(i, "DestQP")), u(i, "AckReq") != 0, serial.PSN(u(i, "PSN"))
		case "RETH":
			h.VA, h.RKey, h.Len = u(i, "VA"), uint32(u(i, "RKey")), uint32(u(i, "Len"))
		case "AtomicETH":
			h.VA, h.RKey, h.Swap, h.Compare = u(i, "VA"), uint32(u(i, "RKey")), u(i, "Swap"), u(i, "Compare")
		case "AETH":
			h.Syndrome, h.MSN = Syndrome(u(i, "Syndrome")), uint32(u(i, "MSN"))
		case "AtomicAckETH":
			h.Result = u(i, "Result")
		case "ImmDt": // the bytes as they lie in memory
			h.Imm = binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, uint32(u(i, "Imm"))))
		case "IETH":
			h.Inv = uint32(u(i, "RKey"))
		case "XRCETH":
			h.SRQN = uint32(u(i, "SRQN"))
		case "DETH":
			h.QKey, h.SrcQP = uint32(u(i, "QKey")), uint32(u(i, "SrcQP"))
		case "CNP":
		default:
			t.Fatalf("%s: header %q", v.Name, v.Parts[i].Header)
		}
	}
	return h
}
