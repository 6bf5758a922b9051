package vopr

import (
	"testing"

	"github.com/metaroce/metaroce/transport/wire"
)

// TestDigest: packets that differ in a byte change the trace's hash in different ways, their checksums being right.
func TestDigest(t *testing.T) {
	a, b := make([]byte, wire.MinPacket), make([]byte, wire.MinPacket)
	b[0] = 1
	wire.Seal(a)
	wire.Seal(b)
	if digest(a) == digest(b) {
		t.Error("two packets, one digest")
	}
}
