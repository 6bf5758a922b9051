//go:build dpdk

package wire

import (
	"time"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/refimpl/dpdkx"
)

// The rate of bare frames, without a protocol: the ceiling of what a NIC over this port can do.

const rateBurst = 32

// AwaitLink waits until somebody is at the other end; it reports false when nobody is within the time.
func (p *Port) AwaitLink(limit time.Duration) bool {
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		p.now = mono.Time(time.Since(start)) // by which a memif's client dials again
		if p.LinkUp() {
			return true
		}
		if time.Since(start) > limit {
			return false
		}
	}
}

// SendFrames sends copies of a frame, as fast as the port takes them, for a while, and returns how many it took. Each is copied
// into its buffer, as a payload would be.
func (p *Port) SendFrames(frame []byte, d time.Duration) (frames uint64) {
	var bufs [rateBurst][]byte
	for end := time.Now().Add(d); time.Now().Before(end); {
		for range 64 {
			n := 0
			for ; n < rateBurst; n++ {
				if bufs[n] = p.spare(); bufs[n] == nil {
					break
				}
				p.q.Set(n, bufs[n], pkt.Headroom, copy(bufs[n][pkt.Headroom:], frame), 0, 0)
			}
			sent := p.q.Tx(n)
			for _, b := range bufs[sent:n] {
				p.q.Put(b)
			}
			frames += uint64(sent)
		}
	}
	return frames
}

// CountFrames receives for a while and returns how many frames came and the bytes in them. Each is copied out once.
func (p *Port) CountFrames(d time.Duration) (frames, bytes uint64) {
	out := make([]byte, p.mem.pool.Room())
	for end := time.Now().Add(d); time.Now().Before(end); {
		for range 64 {
			n := p.q.Rx(dpdkx.Burst)
			for i := range n {
				f, _ := p.q.Packet(i)
				bytes += uint64(copy(out, f))
			}
			frames += uint64(n)
		}
	}
	return frames, bytes
}
