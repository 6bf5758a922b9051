package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
)

// assistSpace reaches a program's memory through a thread of the program that copies (mode MR_DMA_ASSIST; the thread is
// verbs/libibverbs/assist.c). A call, in order:
//
//  1. Segments become descriptors; what is to be written is copied into the shared data.
//  2. The producer index moves, and the thread is woken when it sleeps.
//  3. Each descriptor is waited for, in order; what was read is copied out.
//
// The loop waits for a stranger here, so the wait is bounded: by assistWait at once, and in the long run waits that are
// longer than assistFree have half of the loop's time (credit). A program that is stopped is not waited for. What was not
// done by then is taken back, the call fails with ErrStalled, and so does every later one, at once, until the thread has
// caught up.
type assistSpace struct {
	m     *hostq.AssistMem
	raw   []byte
	pid   int // 0: unknown
	pidfd int
	ended *atomic.Bool // the program's connection has ended
	guard uint64
	nonce [8]byte

	prod    uint32 // descriptors posted
	callNo  uint32
	off     [assistBatch]uint32 // where the data of the descriptors of this call are
	stalled bool
	credit  time.Duration
	asked   time.Time     // when credit was last counted
	free    time.Duration // what the call in progress may still wait at no cost
}

const (
	assistBatch = 256 // descriptors of a call; half the ring
	assistWait  = 500 * time.Millisecond
	assistFree  = 20 * time.Millisecond // a wait that costs no credit: a thread that found no core, on a busy machine
	assistPeeks = 200                   // looks before the loop yields …
	assistSpin  = 30 * time.Microsecond // … and how long it does that before it sleeps
	assistNap   = 5 * time.Millisecond  // how often a sleeping loop looks whether the program lives
)

func newAssistSpace(m *hostq.AssistMem, raw []byte, c *client) (*assistSpace, error) {
	s := &assistSpace{m: m, raw: raw, pid: c.pid, pidfd: c.pidfd, ended: &c.hungUp, guard: c.guard[0], credit: assistWait, asked: time.Now()}
	for i := range s.nonce {
		s.nonce[i] = byte(c.guard[1] >> (8 * i))
	}
	return s, s.prove()
}

// prove lets the thread read the guard, as the other modes do; here it shows that there is a thread.
func (s *assistSpace) prove() error {
	var got [8]byte
	if _, err := s.Read([]device.Seg{{Addr: s.guard, Buf: got[:]}}); err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	if got != s.nonce {
		return errNonce
	}
	return nil
}

func (s *assistSpace) dma() (mode uint32, why error) { return hostq.DMAAssist, nil }

func (s *assistSpace) close() { unix.Munmap(s.raw) } //nolint:errcheck // it was mapped

// Read implements device.Space.
func (s *assistSpace) Read(segs []device.Seg) (int, error) { return s.call(segs, false) }

// Write implements device.Space.
func (s *assistSpace) Write(segs []device.Seg) (int, error) { return s.call(segs, true) }

func (s *assistSpace) call(segs []device.Seg, write bool) (int, error) {
	s.free = assistFree
	if s.stalled {
		done, ok := s.m.Done()
		if !ok {
			return 0, device.ErrGone
		}
		if done != s.prod {
			return 0, device.ErrStalled
		}
		s.stalled = false
	}
	for done := 0; done < len(segs); {
		k, err := s.part(segs[done:], write)
		if done += k; err != nil {
			return done, err
		}
	}
	return len(segs), nil
}

// part does as many segments as fit at once.
func (s *assistSpace) part(segs []device.Seg, write bool) (int, error) {
	first := s.prod
	s.callNo++
	n, end := 0, uint64(0)
	for ; n < min(len(segs), assistBatch); n++ {
		g := &segs[n]
		off := end + (g.Addr-end)%8 // an aligned word there is one here too, so no page's end cuts it in two
		if end = off + uint64(len(g.Buf)); end > hostq.AssistData {
			break
		}
		s.off[n] = uint32(off)
		if write && !s.m.Fill(s.off[n], g.Buf) || !s.m.Put(first+uint32(n), g.Addr, uint32(len(g.Buf)), s.off[n], write, s.callNo) {
			return 0, device.ErrGone
		}
	}
	if n == 0 { // larger than everything: no packet is
		return 0, device.ErrFault
	}
	s.prod += uint32(n)
	if err := s.post(); err != nil {
		return 0, err
	}
	for i := range n {
		state, err := s.wait(first + uint32(i))
		if err == nil && state != hostq.AssistDone {
			err = device.ErrFault
		}
		if err == nil && !write && !s.m.Fetch(segs[i].Buf, s.off[i]) {
			err = device.ErrGone
		}
		if err != nil {
			return i, s.giveUp(first+uint32(i), err)
		}
	}
	return n, nil
}

func (s *assistSpace) post() error {
	asleep, ok := s.m.Post(s.prod)
	if ok && asleep {
		if ok = s.m.Ring(); ok {
			futexWake(s.m.BellWord())
		}
	}
	if !ok {
		return device.ErrGone
	}
	return nil
}

// giveUp takes back what the thread has not begun with. After a fault the thread passes over the rest by itself, and
// whatever it says of it must not stay in its way.
func (s *assistSpace) giveUp(from uint32, err error) error {
	for i := from; i != s.prod; i++ {
		if _, ok := s.m.Cancel(i); !ok {
			return device.ErrGone
		}
	}
	s.stalled = true // until it is through with what is in the ring
	if errors.Is(err, device.ErrFault) {
		if _, werr := s.settle(); werr != nil {
			return werr
		}
	}
	return err
}

// settle waits until the thread is through with everything.
func (s *assistSpace) settle() (uint32, error) {
	return s.await(func() (uint32, bool, bool) {
		v, ok := s.m.Done()
		return v, v == s.prod, ok
	})
}

// wait waits for a descriptor to end.
func (s *assistSpace) wait(i uint32) (uint32, error) {
	return s.await(func() (uint32, bool, bool) {
		v, ok := s.m.State(i)
		return v, v >= hostq.AssistDone, ok
	})
}

// await waits until look says that it is so: a few looks, a few yields, then sleep.
func (s *assistSpace) await(look func() (v uint32, there, ok bool)) (uint32, error) {
	for range assistPeeks {
		if v, there, ok := look(); there || !ok {
			return v, orGone(ok)
		}
	}
	begin := time.Now()
	for time.Since(begin) < assistSpin {
		if v, there, ok := look(); there || !ok {
			return v, orGone(ok)
		}
		schedYield()
	}
	return s.sleep(begin, look)
}

func orGone(ok bool) error {
	if !ok {
		return device.ErrGone
	}
	return nil
}

// sleep waits on the futex, in naps: a program that dies meanwhile wakes nobody.
func (s *assistSpace) sleep(begin time.Time, look func() (v uint32, there, ok bool)) (v uint32, err error) {
	s.credit = min(assistWait, s.credit+begin.Sub(s.asked))
	defer func() {
		s.asked = time.Now()
		waited := s.asked.Sub(begin)
		free := min(waited, s.free)
		s.free -= free
		s.credit -= waited - free
		s.m.SetWaiting(0)
	}()
	for naps := 1; ; naps++ {
		done, ok := s.m.Done()
		ok = ok && s.m.SetWaiting(1)
		v, there, ok2 := look()
		gone, ok3 := s.m.Gone()
		switch {
		case there:
			return v, nil
		case !ok || !ok2 || !ok3 || gone || s.ended.Load():
			return v, device.ErrGone
		case time.Since(begin) > s.free+max(s.credit, 0):
			return v, device.ErrStalled
		}
		if futexWait(s.m.DoneWord(), done, assistNap) == unix.ETIMEDOUT && naps%2 == 0 {
			if err := s.life(); err != nil {
				return v, err
			}
		}
	}
}

// life asks the kernel whether the program is there (ErrGone) and not stopped (ErrStalled).
func (s *assistSpace) life() error {
	if s.pidfd >= 0 {
		p := []unix.PollFd{{Fd: int32(s.pidfd), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, 0); err == nil && n > 0 {
			return device.ErrGone
		}
	}
	if s.pid <= 0 {
		return nil
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(s.pid) + "/stat")
	if err != nil {
		return nil //nolint:nilerr // it says nothing, then
	}
	if i := bytes.LastIndex(b, []byte(") ")); i >= 0 && i+2 < len(b) && bytes.IndexByte([]byte("TtZX"), b[i+2]) >= 0 {
		return device.ErrStalled
	}
	return nil
}
