package daemon

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/internal/mono"
)

// TestMalformed: each wrong message gets its errno, or the connection ends; the daemon goes on.
func TestMalformed(t *testing.T) {
	d := start(t, nil)
	hello := func() []byte {
		m := hostq.Hello{Magic: hostq.Magic, ABIMajor: hostq.ABIMajor}
		return seal(append([]byte(nil), hostq.Bytes(&m)...), hostq.OpHello, 1)
	}
	change := func(b []byte, at int, v uint32) []byte {
		binary.LittleEndian.PutUint32(b[at:], v)
		return b
	}
	const hangup = -1
	for name, c := range map[string]struct {
		first, msg []byte
		want       int32
	}{
		"empty header":        {nil, make([]byte, 4), hangup},
		"length that lies":    {nil, change(hello(), 4, 99999), hangup},
		"length of another":   {nil, change(hello(), 4, 16), hangup},
		"too long":            {nil, seal(make([]byte, hostq.MsgBytes+1), hostq.OpMgmt, 1), hangup},
		"magic":               {nil, change(hello(), 16, 7), int32(unix.EINVAL)},
		"hello too short":     {nil, seal(make([]byte, 40), hostq.OpHello, 1), int32(unix.EINVAL)},
		"before hello":        {nil, seal(make([]byte, 24), hostq.OpAllocPD, 1), int32(unix.EPROTO)},
		"hello twice":         {hello(), hello(), int32(unix.EINVAL)},
		"no such operation":   {hello(), seal(make([]byte, 24), 999, 1), int32(unix.EOPNOTSUPP)},
		"not yet implemented": {hello(), seal(make([]byte, 72), hostq.Op(55), 1), int32(unix.EOPNOTSUPP)},
		"object before open":  {hello(), seal(make([]byte, 24), hostq.OpAllocPD, 1), int32(unix.EINVAL)},
		"open without memory": {hello(), seal(make([]byte, 88), hostq.OpOpen, 1), int32(unix.EINVAL)},
		"request too short":   {hello(), seal(make([]byte, 16), hostq.OpCreateQP, 1), int32(unix.EINVAL)},
		"request too long":    {hello(), seal(make([]byte, 200), hostq.OpCreateQP, 1), int32(unix.EINVAL)},
	} {
		p, err := dial(d.cfg.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if c.first != nil {
			if _, _, err := p.raw(c.first); err != nil {
				t.Fatal(err)
			}
		}
		b, _, err := p.raw(c.msg)
		got := int32(hangup)
		if err == nil {
			got = int32(binary.LittleEndian.Uint32(b[12:]))
		}
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		p.close()
	}
	if d.stats.malformed.Load() == 0 {
		t.Error("nothing counted")
	}
}

// TestVersion: another ABI gets an answer that says which one we speak, and is shown the door.
func TestVersion(t *testing.T) {
	d := start(t, nil)
	p, err := dial(d.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	m := hostq.Hello{Magic: hostq.Magic, ABIMajor: hostq.ABIMajor + 1}
	b, _, err := p.raw(seal(append([]byte(nil), hostq.Bytes(&m)...), hostq.OpHello, 1))
	var r hostq.HelloReply
	if err != nil || !hostq.Decode(b, &r) || r.Status != int32(unix.EPROTONOSUPPORT) || r.ABIMajor != hostq.ABIMajor {
		t.Errorf("%v %+v", err, r)
	}
	if _, _, err := p.raw(b); !errors.Is(err, errHungUp) {
		t.Errorf("still there: %v", err)
	}
}

// TestMemory: what is not a sealed memfd of the right size is not mapped, and a guard that is not there opens nothing.
func TestMemory(t *testing.T) {
	d := start(t, nil)
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	file.Truncate(shmBytes)
	sealed := func(size int64, seals int) int {
		fd, err := memfd(size, seals)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	for name, c := range map[string]struct {
		fd    int
		bytes uint64
	}{
		"a file":       {int(file.Fd()), shmBytes},
		"not sealed":   {sealed(shmBytes, 0), shmBytes},
		"can shrink":   {sealed(shmBytes, unix.F_SEAL_GROW|unix.F_SEAL_SEAL), shmBytes},
		"not final":    {sealed(shmBytes, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK), shmBytes},
		"not writable": {sealed(shmBytes, allSeals|unix.F_SEAL_WRITE), shmBytes},
		"smaller":      {sealed(shmBytes/2, allSeals), shmBytes},
		"larger":       {sealed(shmBytes*2, allSeals), shmBytes},
		"tiny":         {sealed(4096, allSeals), 4096},
		"a socket":     {d.loops[0].wakeFD, shmBytes},
	} {
		p, err := dial(d.cfg.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := p.hello(); err != nil || r.DMAMode != hostq.DMAProcessVM {
			t.Fatalf("hello: %v, DMA mode %d", err, r.DMAMode)
		}
		m := hostq.Open{ShmBytes: c.bytes}
		copy(m.Name[:], "a/mr0")
		var r hostq.OpenReply
		if _, err := call(p, hostq.OpOpen, &m, &r, c.fd); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
		p.close()
	}
	p, err := dial(d.cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	var hr hostq.HelloReply
	if _, err := call(p, hostq.OpHello, &hostq.Hello{Magic: hostq.Magic, ABIMajor: 1, GuardAddr: 0x1000, GuardNonce: 5}, &hr); err != nil || hr.DMAMode != 0 {
		t.Errorf("wrong guard: %v, DMA mode %d", err, hr.DMAMode)
	}
	m := hostq.Open{ShmBytes: shmBytes}
	copy(m.Name[:], "a/mr0")
	var r hostq.OpenReply
	if _, err := call(p, hostq.OpOpen, &m, &r, sealed(shmBytes, allSeals)); !errors.Is(err, syscall.EPERM) {
		t.Errorf("open with a wrong guard: %v", err)
	}
}

// TestSpace: segments, faults in the middle, and the fallback.
func TestSpace(t *testing.T) {
	m, err := unix.Mmap(-1, 0, 4*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	hole := m[2*4096 : 3*4096]
	if err := unix.Mprotect(hole, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	guard := make([]byte, 8)
	binary.LittleEndian.PutUint64(guard, 77)
	s, err := openSpace(os.Getpid(), addrOf(guard), 77)
	if err != nil {
		t.Fatal(err)
	}
	base := addrOf(m)
	x, y, z := []byte("first"), []byte("second"), []byte("third")
	segs := []device.Seg{{Addr: base, Buf: x}, {Addr: base + 5, Buf: y}, {Addr: base + 8192, Buf: z}, {Addr: base + 100, Buf: z}}
	if n, err := s.Write(segs); n != 2 || !errors.Is(err, device.ErrFault) {
		t.Errorf("write: %d %v", n, err)
	}
	if string(m[:11]) != "firstsecond" || m[100] != 0 {
		t.Errorf("memory %q", m[:11])
	}
	if n, err := s.Write(segs[3:]); n != 1 || err != nil || string(m[100:105]) != "third" {
		t.Errorf("write: %d %v", n, err)
	}
	got := make([]byte, 11)
	if n, err := s.Read([]device.Seg{{Addr: base, Buf: got[:4]}, {Addr: base + 4, Buf: got[4:]}}); n != 2 || err != nil || string(got) != "firstsecond" {
		t.Errorf("read: %d %v %q", n, err, got)
	}
	many := make([]device.Seg, 1300)
	buf := make([]byte, len(many))
	for i := range many {
		many[i] = device.Seg{Addr: base + uint64(i*3), Buf: buf[i : i+1]}
	}
	if n, err := s.Read(many); n != len(many) || err != nil {
		t.Errorf("many: %d %v", n, err)
	}
	guard[0]++ // another image would hold something else there
	if n, err := s.Read(segs[:1]); n != 0 || !errors.Is(err, device.ErrGone) {
		t.Errorf("wrong guard: %d %v", n, err)
	}
	guard[0]--
	if s.mem, err = os.OpenFile("/proc/self/mem", os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.mode = hostq.DMAProcMem
	if n, err := s.Write(segs[:2]); n != 2 || err != nil {
		t.Errorf("/proc/self/mem: %d %v", n, err)
	}
	if n, err := s.Write([]device.Seg{{Addr: 0x1000, Buf: x}}); n != 0 || !errors.Is(err, device.ErrFault) {
		t.Errorf("/proc/self/mem at a hole: %d %v", n, err)
	}
	if n := testing.AllocsPerRun(100, func() {
		s.mode = hostq.DMAProcessVM
		s.Write(segs[:2])
	}); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

// TestOpenFails: an OPEN that fails half-way leaves nothing behind, so that asking again and again costs nothing.
func TestOpenFails(t *testing.T) {
	d := start(t, nil)
	d.Stop() // the loop takes no more
	guard := make([]byte, 8)
	space, err := openSpace(os.Getpid(), addrOf(guard), 0)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := memfd(1<<20, allSeals)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	c := newClient(d, nil)
	c.pid, c.hello, c.space = os.Getpid(), true, space
	m := hostq.Open{ShmBytes: 1 << 20}
	copy(m.Name[:], "a/mr0")
	if a := doOpen(c, &m, []int{fd}); !errors.Is(a.err, unix.EIO) || c.mem != nil || c.bell != -1 || c.async != -1 {
		t.Errorf("%v: memory of %d bytes, descriptors %d and %d are left", a.err, len(c.mem), c.bell, c.async)
	}
}

// TestText: a program's name cannot write to the terminal of who looks at the status.
func TestText(t *testing.T) {
	for in, want := range map[string]string{"prog\x00rest": "prog", "a\x1b[2Jb\r\n": "a?[2Jb??", "\xff\u202ex": "??x", "ä b": "ä b"} {
		if got := text([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// bodies is the size of the body of each operation's request, as the handlers want it. Those of any size are left out.
func bodies(t testing.TB, d *Daemon) map[hostq.Op]int {
	sizes := map[hostq.Op]int{}
	c := deafClient(t, d) // no context: nothing is done
	for op := range handlers {
		for n := 0; 16+n <= hostq.MsgBytes && op != hostq.OpMgmt && op != hostq.OpHello; n += 4 {
			before := d.stats.malformed.Load()
			if a, _ := c.answer(seal(make([]byte, 16+n), op, 1), nil); d.stats.malformed.Load() == before {
				closeAll(a.fds)
				sizes[op] = n
				break
			}
		}
	}
	c.teardown()
	return sizes
}

// FuzzControl: no message harms the daemon. Each run is a connection with an open context that sends up to 8 messages,
// those with an odd sequence number with a sealed memfd.
func FuzzControl(f *testing.F) {
	d := start(f, nil)
	add := func(op hostq.Op, body ...byte) []byte {
		return seal(append(make([]byte, 16), body...), op, 1)
	}
	sizes := bodies(f, d)
	if len(sizes) < len(handlers)-2 {
		f.Fatalf("only %d operations of %d ever got a body of the right size", len(sizes), len(handlers))
	}
	for op, n := range sizes {
		one := add(op, make([]byte, n)...)
		one[16] = 1 // most are handles, and a length for some
		f.Add(one)
		f.Add(append(add(hostq.OpAllocPD, make([]byte, 8)...), one...))
		f.Add(append(add(hostq.OpCMSetup, make([]byte, sizes[hostq.OpCMSetup])...), one...))
	}
	f.Add(add(hostq.OpOpenXRCD, unix.O_CREAT, 0, 0, 0, 0, 0, 0, 0))
	f.Add(add(hostq.OpAllocDM, 0, 0, 1<<20>>16, 0, 0, 0, 0, 0)) // as long as the memfd
	f.Add(add(hostq.OpMgmt, []byte(`{"cmd":"status"}`)...))
	f.Add(append(add(hostq.OpCreateCQ, make([]byte, 40)...), add(hostq.OpModifyQP, make([]byte, 152)...)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := deafClient(t, d)
		guard := make([]byte, 8)
		var err error
		if c.space, err = openSpace(c.pid, addrOf(guard), 0); err != nil {
			t.Fatal(err)
		}
		fd, err := memfd(1<<20, allSeals)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if c.mem, err = mapMemory(fd, 1<<20); err != nil {
			t.Fatal(err)
		}
		a := c.open(d.nics[0], nil)
		closeAll(a.fds)
		if a.err != nil {
			t.Fatal(a.err)
		}
		for i := 0; i < 8 && len(data) >= 16; i++ {
			n := min(int(binary.LittleEndian.Uint32(data[4:])), len(data))
			if n < 16 {
				n = len(data)
			}
			var fds []int
			if data[8]&1 != 0 {
				fds = []int{fd}
			}
			a, _ := c.answer(data[:n:n], fds)
			closeAll(a.fds)
			data = data[n:]
		}
		c.teardown()
	})
}

// deafClient is a client that said hello; nobody is at the other end.
func deafClient(t testing.TB, d *Daemon) *client {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(pair[1])
	f := os.NewFile(uintptr(pair[0]), "pair")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(d, conn.(*net.UnixConn))
	c.pid, c.hello = os.Getpid(), true
	return c
}

// TestExec: a program that becomes another image is not written to, whoever has its pid then.
func TestExec(t *testing.T) {
	d := start(t, nil)
	cmd := spawn(t, "exec", "MR_TEST_SOCKET="+d.cfg.Socket)
	var space *procSpace
	d.OnLoop(func(mono.Time) {
		for c := range d.loops[0].open {
			space, _ = c.space.(*procSpace)
		}
	})
	if space == nil {
		t.Fatal("no client")
	}
	s, err := openSpace(space.pid, space.guard, binary.LittleEndian.Uint64(space.nonce[:]))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Process.Signal(syscall.SIGUSR1) // now it becomes sleep
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if comm, _ := os.ReadFile("/proc/" + strconv.Itoa(s.tgid) + "/comm"); string(comm) == "sleep\n" {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it did not exec")
		}
	}
	if n, err := s.Write([]device.Seg{{Addr: s.guard, Buf: []byte("x")}}); n != 0 || !errors.Is(err, device.ErrGone) {
		t.Errorf("write into another image: %d %v", n, err)
	}
	waitFree(t, d, time.Second)
}
