package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestIBTA(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(vectorDir, "rocev2-icrc.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Vectors []struct{ Name, IP, UDP, Rest, ICRC string }
	}
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Vectors) != 2 {
		t.Fatalf("%d vectors", len(f.Vectors))
	}
	un := func(s string) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, v := range f.Vectors {
		ip, udp, rest := un(v.IP), un(v.UDP), un(v.Rest)
		sum := func() []byte { return binary.LittleEndian.AppendUint32(nil, IBTA(ip, udp, rest)) }
		want := un(v.ICRC)
		if got := sum(); !bytes.Equal(got, want) {
			t.Errorf("%s: %x, want %x", v.Name, got, want)
		}

		// What a router may change does not matter; every other byte does.
		variant := map[string]map[int]byte{
			"ip": {1: 0xff, 8: 0xff, 10: 0xff, 11: 0xff}, "udp": {6: 0xff, 7: 0xff}, "rest": {4: 0xff},
		}
		if len(ip) == 40 {
			variant["ip"] = map[int]byte{0: 0x0f, 1: 0xff, 2: 0xff, 3: 0xff, 7: 0xff}
		}
		for name, b := range map[string][]byte{"ip": ip, "udp": udp, "rest": rest} {
			for i := range b {
				for bit := range 8 {
					b[i] ^= 1 << bit
					same := bytes.Equal(sum(), want)
					b[i] ^= 1 << bit
					if free := variant[name][i]>>bit&1 != 0; same != free {
						t.Errorf("%s: %s byte %d bit %d: counts = %v", v.Name, name, i, bit, !same)
					}
				}
			}
		}
	}
	if IBTA(make([]byte, 19), make([]byte, 8), nil) != 0 || IBTA(make([]byte, 20), make([]byte, 7), nil) != 0 {
		t.Error("lengths that cannot be")
	}
}

// TestSealDiffers: a MetaRoCE packet sealed by IBTA's rule would be refused, so the two cannot be confused.
func TestSealDiffers(t *testing.T) {
	h := Header{Op: OpAck}
	b := make([]byte, 64)
	n := h.Put(b) + 4 + ICRCLen
	binary.LittleEndian.PutUint32(b[n-4:], IBTA(make([]byte, 20), make([]byte, 8), b[:n-4]))
	var g Header
	if _, d := Decode(b[:n], &g); d != DropICRC {
		t.Errorf("dropped for %v", d)
	}
}
