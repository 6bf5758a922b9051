package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/device/hostq/hostqtest"
)

// start runs a daemon with two NICs, a/mr0 and b/mr0, joined by wires in memory, on testLoops loops.
func start(t testing.TB, change func(*Config)) *Daemon {
	t.Helper()
	var cfgs []device.Config
	for i := range 2 {
		cfgs = append(cfgs, device.Config{Name: string(rune('a'+i)) + "/mr0", Dev: "mr0", Seed: uint64(i + 1),
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}})
	}
	for range 2 {
		x, y := newSharedWire(4300)
		cfgs[0].Ports, cfgs[1].Ports = append(cfgs[0].Ports, x), append(cfgs[1].Ports, y)
	}
	cfg := Config{Socket: filepath.Join(t.TempDir(), "d", "mr.sock"), NICs: cfgs, Version: "test", Loops: testLoops, NoIdleSpin: testLoops > 1}
	if change != nil {
		change(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	return d
}

// prog is a program's connection, written from mr_abi.h alone.
type prog struct {
	conn  *net.UnixConn
	seq   uint32
	guard []byte
	shm   []byte
	memFD int
	bell  int
	async int
	*hostqtest.Prog
}

func dial(socket string) (*prog, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return &prog{conn: c, memFD: -1, bell: -1, async: -1}, nil
}

var errHungUp = errors.New("hung up")

// raw sends a message as it is and returns the reply.
func (p *prog) raw(msg []byte, fds ...int) ([]byte, []int, error) {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := p.conn.WriteMsgUnix(msg, oob, nil); err != nil {
		return nil, nil, errHungUp
	}
	b, o := make([]byte, 70000), make([]byte, 256)
	n, on, _, _, err := p.conn.ReadMsgUnix(b, o)
	if err != nil || n == 0 {
		return nil, nil, errHungUp
	}
	return b[:n], parseFDs(o[:on]), nil
}

func seal(msg []byte, op hostq.Op, seq uint32) []byte {
	binary.LittleEndian.PutUint16(msg, uint16(op))
	binary.LittleEndian.PutUint32(msg[4:], uint32(len(msg)))
	binary.LittleEndian.PutUint32(msg[8:], seq)
	return msg
}

// call does one request; the reply's status becomes the error.
func call[Q, R hostq.Plain](p *prog, op hostq.Op, q *Q, r *R, fds ...int) ([]int, error) {
	p.seq++
	b, got, err := p.raw(seal(append([]byte(nil), hostq.Bytes(q)...), op, p.seq), fds...)
	if err != nil {
		return nil, err
	}
	var h hostq.Hdr
	hostq.Decode(b[:16], &h)
	if h.Seq != p.seq || h.Op != uint16(op) || int(h.Len) != len(b) {
		return nil, fmt.Errorf("reply %+v of %d bytes", h, len(b))
	}
	if h.Status != 0 {
		return got, syscall.Errno(h.Status)
	}
	if !hostq.Decode(b, r) {
		return got, fmt.Errorf("reply of %d bytes", len(b))
	}
	return got, nil
}

func (p *prog) hello() (r hostq.HelloReply, err error) {
	if p.guard == nil {
		if p.guard, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON); err != nil {
			return r, err
		}
	}
	binary.LittleEndian.PutUint64(p.guard, 0x1122334455667788)
	m := hostq.Hello{Magic: hostq.Magic, ABIMajor: hostq.ABIMajor, GuardAddr: addrOf(p.guard), GuardNonce: 0x1122334455667788}
	copy(m.Program[:], "prog")
	_, err = call(p, hostq.OpHello, &m, &r)
	return r, err
}

func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }

const shmBytes = 8 << 20

// memfd makes shared memory with the seals given.
func memfd(size int64, seals int) (int, error) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, err
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		return -1, err
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			return -1, err
		}
	}
	return fd, nil
}

const allSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// open says hello and opens a NIC.
func open(socket, nic string) (*prog, error) {
	p, err := dial(socket)
	if err != nil {
		return nil, err
	}
	if _, err := p.hello(); err != nil {
		return nil, err
	}
	if p.memFD, err = memfd(shmBytes, allSeals); err != nil {
		return nil, err
	}
	if p.shm, err = unix.Mmap(p.memFD, 0, shmBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	m := hostq.Open{ShmBytes: shmBytes}
	copy(m.Name[:], nic)
	var r hostq.OpenReply
	fds, err := call(p, hostq.OpOpen, &m, &r, p.memFD)
	if err != nil {
		return nil, err
	}
	if len(fds) != 2 {
		return nil, fmt.Errorf("OPEN gave %d descriptors", len(fds))
	}
	p.bell, p.async = fds[0], fds[1]
	mem, err := hostq.NewMem(p.shm)
	if err != nil {
		return nil, err
	}
	p.Prog = hostqtest.New(mem)
	p.Wake = func() { unix.Write(p.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }
	return p, nil
}

func (p *prog) close() {
	p.conn.Close()
	closeAll([]int{p.memFD, p.bell, p.async})
	if p.shm != nil {
		unix.Munmap(p.shm)
	}
}

// verbs are the objects of one program: PD, region over buf, CQ, one QP.
type verbs struct {
	*prog
	pd, cq, qp, qpn, chan_ uint32
	chanFD                 int
	key                    uint32
	mr                     uint32
	buf                    []byte
	CQ, SQ, RQ             *hostqtest.Queue
}

func objects(socket, nic string) (*verbs, error) {
	p, err := open(socket, nic)
	if err != nil {
		return nil, err
	}
	v := &verbs{prog: p}
	if v.buf, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, err
	}
	var h hostq.Handle
	if _, err := call(p, hostq.OpAllocPD, &hostq.Handle{}, &h); err != nil {
		return nil, fmt.Errorf("ALLOC_PD: %w", err)
	}
	v.pd = h.Handle
	var mr hostq.RegMRReply
	if _, err := call(p, hostq.OpRegMR, &hostq.RegMR{PD: v.pd, Addr: addrOf(v.buf), IOVA: addrOf(v.buf), Length: uint64(len(v.buf)), Access: 15}, &mr); err != nil {
		return nil, fmt.Errorf("REG_MR: %w", err)
	}
	v.key, v.mr = mr.LKey, mr.Handle
	fds, err := call(p, hostq.OpCreateChannel, &hostq.Handle{}, &h)
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("CREATE_CHANNEL: %w, %d descriptors", err, len(fds))
	}
	v.chan_, v.chanFD = h.Handle, fds[0]
	v.CQ, v.SQ, v.RQ = p.NewQueue(256, 128, 0), p.NewQueue(64, 576, 0), p.NewQueue(64, 576, 1)
	if _, err := call(p, hostq.OpCreateCQ, &hostq.CreateCQ{Entries: 256, Ring: v.CQ.Off, Channel: v.chan_, Cookie: 0xc}, &h); err != nil {
		return nil, fmt.Errorf("CREATE_CQ: %w", err)
	}
	v.cq = h.Handle
	var q hostq.CreateQPReply
	if _, err := call(p, hostq.OpCreateQP, &hostq.CreateQP{PD: v.pd, Type: 2, SendCQ: v.cq, RecvCQ: v.cq, SQEntries: 64, SQStride: 576, RQEntries: 64,
		RQStride: 576, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 256, SQRing: v.SQ.Off, RQRing: v.RQ.Off, SQDoorbell: 0, RQDoorbell: 1}, &q); err != nil {
		return nil, fmt.Errorf("CREATE_QP: %w", err)
	}
	v.qp, v.qpn = q.Handle, q.QPN
	return v, nil
}

// connect takes the QP to RTS.
func (v *verbs) connect(remote netip.Addr, qpn uint32) error {
	for _, s := range []struct{ to, mask uint32 }{{1, 1 | 1<<4 | 1<<5 | 1<<3}, {2, 1 | 1<<7 | 1<<8 | 1<<20 | 1<<12 | 1<<17 | 1<<15}, {3, 1 | 1<<9 | 1<<10 | 1<<11 | 1<<16 | 1<<13}} {
		m := hostq.ModifyQP{Handle: v.qp, Mask: s.mask, QPState: s.to, PortNum: 1, QPAccessFlags: 15, PathMTU: 3, DestQPNum: qpn,
			AH: hostq.AHAttr{DGID: remote.As16(), IsGlobal: 1, PortNum: 1, HopLimit: 64}, MaxRdAtomic: 4, MaxDestRdAtomic: 4, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 1}
		var r hostq.Hdr
		if _, err := call(v.prog, hostq.OpModifyQP, &m, &r); err != nil {
			return fmt.Errorf("to state %d: %w", s.to, err)
		}
	}
	return nil
}

func (v *verbs) sge(off, n int) hostq.SGE {
	return hostq.SGE{Addr: addrOf(v.buf) + uint64(off), Length: uint32(n), LKey: v.key}
}

// poll waits for a completion.
func (v *verbs) poll() (hostq.CQE, error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if e, ok := v.CQ.Poll(); ok {
			return e, nil
		}
		time.Sleep(20 * time.Microsecond)
	}
	return hostq.CQE{}, errors.New("no completion")
}

func (v *verbs) close() {
	v.prog.close()
	unix.Close(v.chanFD)
	unix.Munmap(v.buf)
}

func TestMain(m *testing.M) {
	if role := os.Getenv("MR_TEST_ROLE"); role != "" {
		if err := helper(role); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
