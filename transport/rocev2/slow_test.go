package rocev2_test

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

// TestSlowPeer: a peer that answers after 20 ms, longer than the first timer, must not get everything many times: the
// back-off stays until a packet that was sent once has been measured.
func TestSlowPeer(t *testing.T) {
	l := usual()
	l.Delay = 10 * mono.Millisecond
	w := newWorld(config{seed: 1, link: l})
	p, _ := w.connect(w.nodes[0], w.nodes[1], options{sq: 64})
	const messages, size = 200, 8192
	done, posted := 0, 0
	post := func() {
		if posted < messages {
			posted++
			p.send(wr{op: transport.OpWrite, n: size, key: 7})
		}
	}
	p.onSend = func(c completion) {
		if c.status != transport.OK {
			t.Fatalf("%+v", c)
		}
		done++
		post()
	}
	for range 4 {
		post()
	}
	w.mustRun(t, 20*second, func() bool { return done == messages })
	packets := uint64(messages * size / 1024)
	if c := &w.nodes[0].e.C; c.Retransmits > packets/10 {
		t.Errorf("%d of %d packets went again, %d timeouts", c.Retransmits, packets, c.Timeouts)
	}
}
