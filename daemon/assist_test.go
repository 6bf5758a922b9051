package daemon

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
)

// copier plays the copy thread of a program, written from mr_abi.h; its program's memory is ram.
type copier struct {
	page  *hostq.AssistPage
	area  []byte
	ram   []byte
	bad   uint64 // an address that faults
	moved atomic.Uint64
	stop  atomic.Bool
	wg    sync.WaitGroup
}

const ramBase = 0x10000

func newCopier(t testing.TB) (*copier, *assistSpace) {
	t.Helper()
	fd, err := memfd(hostq.AssistBytes, allSeals)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	area, err := unix.Mmap(fd, 0, hostq.AssistBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := mapMemory(fd, hostq.AssistBytes)
	if err != nil {
		t.Fatal(err)
	}
	m, err := hostq.NewAssistMem(raw)
	if err != nil {
		t.Fatal(err)
	}
	c := &copier{page: (*hostq.AssistPage)(unsafe.Pointer(&area[0])), area: area, ram: make([]byte, 4<<20)}
	var ended atomic.Bool
	s := &assistSpace{m: m, raw: raw, pidfd: -1, ended: &ended, credit: assistWait, asked: time.Now()}
	t.Cleanup(func() {
		c.end()
		s.close()
		unix.Munmap(area)
	})
	return c, s
}

func (c *copier) begin() {
	c.stop.Store(false)
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		for !c.stop.Load() {
			if !c.step() {
				time.Sleep(20 * time.Microsecond)
			}
		}
	}()
}

func (c *copier) end() {
	c.stop.Store(true)
	c.wg.Wait()
}

// step does one descriptor.
func (c *copier) step() bool {
	next := atomic.LoadUint32(&c.page.Done)
	if atomic.LoadUint32(&c.page.Prod) == next {
		return false
	}
	d := &c.page.Desc[next%hostq.AssistDescs]
	if atomic.CompareAndSwapUint32(&d.State, hostq.AssistPosted, hostq.AssistTaken) {
		atomic.StoreUint32(&d.State, c.copy(d))
	}
	atomic.AddUint32(&c.page.Done, 1)
	return true
}

func (c *copier) copy(d *hostq.AssistDesc) uint32 {
	if d.Addr == c.bad {
		return hostq.AssistFault
	}
	there, here := c.ram[d.Addr-ramBase:][:d.Len], c.area[d.Off:][:d.Len]
	if d.Off%8 != uint32(d.Addr%8) {
		return hostq.AssistFault
	}
	if d.Write == 0 {
		there, here = here, there
	}
	copy(there, here)
	c.moved.Add(1)
	return hostq.AssistDone
}

// TestAssist: pieces of all sizes there and back, more than fit at once, and a fault in the middle.
func TestAssist(t *testing.T) {
	c, s := newCopier(t)
	c.begin()
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var out, back []device.Seg
		addr := uint64(ramBase)
		for range 1 + r.IntN(700) {
			n := 1 + r.IntN(9000)
			addr += uint64(r.IntN(20))
			if int(addr)-ramBase+n > len(c.ram) {
				break
			}
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			out, back = append(out, device.Seg{Addr: addr, Buf: b}), append(back, device.Seg{Addr: addr, Buf: make([]byte, n)})
			addr += uint64(n)
		}
		if n, err := s.Write(out); n != len(out) || err != nil {
			t.Fatalf("write: %d of %d, %v", n, len(out), err)
		}
		if n, err := s.Read(back); n != len(back) || err != nil {
			t.Fatalf("read: %d of %d, %v", n, len(back), err)
		}
		c.moved.Load() // the race detector sees no order in words of shared memory
		for i := range out {
			if string(out[i].Buf) != string(back[i].Buf) || string(c.ram[out[i].Addr-ramBase:][:len(out[i].Buf)]) != string(out[i].Buf) {
				t.Fatalf("piece %d of %d bytes differs", i, len(out[i].Buf))
			}
		}
	}
	c.bad = ramBase + 64
	word := make([]byte, 8)
	segs := []device.Seg{{Addr: ramBase, Buf: word}, {Addr: ramBase + 64, Buf: word}, {Addr: ramBase + 128, Buf: word}}
	for range 10 {
		if n, err := s.Write(segs); n != 1 || !errors.Is(err, device.ErrFault) {
			t.Fatalf("fault in the middle: %d %v", n, err)
		}
		if n, err := s.Write(segs[2:]); n != 1 || err != nil {
			t.Fatalf("after the fault: %d %v", n, err)
		}
	}
	if n, err := s.Read([]device.Seg{{Addr: ramBase, Buf: make([]byte, hostq.AssistData+1)}}); n != 0 || !errors.Is(err, device.ErrFault) {
		t.Errorf("larger than the memory: %d %v", n, err)
	}
	if n := testing.AllocsPerRun(100, func() { s.Write(segs[:1]) }); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

// TestAssistStall: a thread that does not answer costs a bounded wait once, moves nothing later of what was given up, and
// is served again when it answers.
func TestAssistStall(t *testing.T) {
	c, s := newCopier(t)
	segs := []device.Seg{{Addr: ramBase, Buf: []byte("given up")}, {Addr: ramBase + 8, Buf: []byte("too")}}
	begin := time.Now()
	if n, err := s.Write(segs); n != 0 || !errors.Is(err, device.ErrStalled) {
		t.Fatalf("nobody there: %d %v", n, err)
	}
	if d := time.Since(begin); d < assistWait/2 || d > 4*assistWait {
		t.Errorf("waited %v", d)
	}
	begin = time.Now()
	for range 1000 {
		if n, err := s.Read(segs); n != 0 || !errors.Is(err, device.ErrStalled) {
			t.Fatalf("still nobody there: %d %v", n, err)
		}
	}
	if d := time.Since(begin); d > assistWait/5 {
		t.Errorf("1000 calls to a stalled program took %v", d)
	}
	c.begin()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if n, err := s.Write([]device.Seg{{Addr: ramBase + 100, Buf: []byte("again")}}); err == nil && n == 1 {
			break
		} else if time.Now().After(end) {
			t.Fatalf("it answers, but: %v", err)
		}
	}
	if c.moved.Load() != 1 || c.ram[0] != 0 || c.ram[8] != 0 || string(c.ram[100:105]) != "again" {
		t.Errorf("%d pieces moved, memory %q", c.moved.Load(), c.ram[:16])
	}
	begin = time.Now()
	s.ended.Store(true)
	c.end()
	if n, err := s.Read(segs); n != 0 || !errors.Is(err, device.ErrGone) || time.Since(begin) > assistWait/2 {
		t.Errorf("after the end of the connection: %d %v, %v", n, err, time.Since(begin))
	}
}

// TestAssistSlow: a thread that takes just less than the bound each time cannot take all of the loop's time.
func TestAssistSlow(t *testing.T) {
	c, s := newCopier(t)
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		for !c.stop.Load() {
			time.Sleep(assistWait * 2 / 5)
			for c.step() { //nolint:revive // until nothing is left
			}
		}
	}()
	var waited time.Duration
	begin := time.Now()
	for time.Since(begin) < 6*assistWait {
		at := time.Now()
		if _, err := s.Read([]device.Seg{{Addr: ramBase, Buf: make([]byte, 8)}}); err != nil && !errors.Is(err, device.ErrStalled) {
			t.Fatal(err)
		}
		waited += time.Since(at)
		time.Sleep(time.Millisecond)
	}
	if total := time.Since(begin); waited > total*2/3+assistWait {
		t.Errorf("the loop waited %v of %v", waited, total)
	}
}

// TestAssistHostile: a program that scribbles over the memory while it is used harms nobody but itself.
func TestAssistHostile(t *testing.T) {
	c, s := newCopier(t)
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		r := rand.New(rand.NewPCG(3, 4))
		words := unsafe.Slice((*uint32)(unsafe.Pointer(&c.area[0])), (hostq.AssistBytes-hostq.AssistData)/4)
		for !c.stop.Load() {
			atomic.StoreUint32(&words[r.IntN(len(words))], r.Uint32())
			for i := range c.page.Desc {
				atomic.StoreUint32(&c.page.Desc[i].State, r.Uint32N(8))
			}
			if r.IntN(100) == 0 {
				atomic.StoreUint32(&c.page.Gone, 0)
			}
		}
	}()
	buf := make([]byte, 3000)
	begin, calls := time.Now(), 0
	for ; time.Since(begin) < time.Second; calls++ {
		segs := []device.Seg{{Addr: ramBase, Buf: buf}, {Addr: ramBase + 5000, Buf: buf[:8]}, {Addr: ^uint64(0) - 3, Buf: buf[:100]}}
		at := time.Now()
		s.Write(segs)
		s.Read(segs)
		if d := time.Since(at); d > 3*assistWait {
			t.Fatalf("a call took %v", d)
		}
	}
	t.Logf("%d calls", calls)
}

// TestAssistRequest: what a program may not offer as its copy thread.
func TestAssistRequest(t *testing.T) {
	d := start(t, nil)
	for name, c := range map[string]struct {
		bytes uint64
		file  int64
		seals int
		want  error
	}{
		"not sealed":     {hostq.AssistBytes, hostq.AssistBytes, 0, syscall.EINVAL},
		"another size":   {hostq.AssistBytes * 2, hostq.AssistBytes * 2, allSeals, syscall.EINVAL},
		"smaller file":   {hostq.AssistBytes, hostq.AssistBytes / 2, allSeals, syscall.EINVAL},
		"nobody answers": {hostq.AssistBytes, hostq.AssistBytes, allSeals, syscall.EPERM},
	} {
		p, err := dial(d.cfg.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.hello(); err != nil {
			t.Fatal(err)
		}
		fd, err := memfd(c.file, c.seals)
		if err != nil {
			t.Fatal(err)
		}
		var h hostq.Hdr
		if _, err := call(p, hostq.OpAssist, &hostq.Assist{Bytes: c.bytes}, &h, fd); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		unix.Close(fd)
		p.close()
	}
	v, err := objects(d.cfg.Socket, "a/mr0")
	if err != nil {
		t.Fatal(err)
	}
	defer v.close()
	var h hostq.Hdr
	if _, err := call(v.prog, hostq.OpAssist, &hostq.Assist{Bytes: hostq.AssistBytes}, &h, int(os.Stdin.Fd())); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("after OPEN: %v", err)
	}
}
