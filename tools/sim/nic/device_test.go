package nic

import (
	"errors"
	"testing"

	"github.com/metaroce/metaroce/device"
)

// TestKnownMemory: what is read may be written at the same address and nowhere else.
func TestKnownMemory(t *testing.T) {
	h := &host{}
	m := (*knownMemory)(h)
	buf := make([]byte, 5000)
	seg := []device.Seg{{Addr: regionBase + 3<<20 + 5, Buf: buf}}
	if n, err := m.Read(seg); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := m.Write(seg); n != 1 || err != nil || h.placed != 5000 {
		t.Errorf("%d, %v, %d bytes placed", n, err, h.placed)
	}
	for _, d := range []int64{1, 8, 4096, -4096, 1 << 20} {
		seg[0].Addr += uint64(d)
		if _, err := m.Write(seg); !errors.Is(err, device.ErrFault) {
			t.Errorf("bytes that belong %d before were taken", d)
		}
		seg[0].Addr -= uint64(d)
	}
	buf[4999] ^= 1
	if _, err := m.Write(seg); !errors.Is(err, device.ErrFault) {
		t.Error("a wrong byte was taken")
	}
	seg[0] = device.Seg{Addr: regionBase - 1, Buf: buf[:1]}
	if _, err := m.Read(seg); !errors.Is(err, device.ErrFault) {
		t.Error("memory outside of the region was read")
	}
}
