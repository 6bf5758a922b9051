package transporttest

import (
	"encoding/binary"
	"slices"

	"github.com/metaroce/metaroce/transport"
)

// Key is registered memory.
type Key struct {
	Lo, Hi              uint64
	Write, Read, Atomic bool
	Relaxed             bool
}

// Memory is a node's memory: plain bytes, keys, and operations that can be made to fail. It serves worlds of other engines,
// too.
type Memory struct {
	Mem   []byte
	Keys  map[uint32]Key
	Shift map[uint32]uint64              // by key: what an address lacks to the place in Mem
	Fault func(op *transport.MemOp) bool // true: this operation's memory is gone
	After func(op *transport.MemOp)      // looks at memory after each operation
	Local func(wr *transport.SendWR)     // looks at each local request as it runs
}

// DMA is that of transport.Host.
func (m *Memory) DMA(ops []transport.MemOp) {
	var bad []uint32 // chains that failed
	for i := range ops {
		op := &ops[i]
		op.Err = transport.MemOK
		if slices.Contains(bad, op.Chain) {
			op.Err = transport.MemSkipped
			continue
		}
		op.Err = m.one(op)
		if m.After != nil {
			m.After(op)
		}
		if op.Err != transport.MemOK && op.Chain != 0 {
			bad = append(bad, op.Chain)
		}
	}
}

func (m *Memory) one(op *transport.MemOp) transport.MemErr {
	if m.Fault != nil && m.Fault(op) {
		return transport.MemFault
	}
	switch op.Kind {
	case transport.MemGather:
		if op.WR.Inline != nil {
			copy(op.Buf, op.WR.Inline[op.Off:])
			return transport.MemOK
		}
		return walk(op.WR.SGE, op.Off, op.Buf, func(a uint64, b []byte) { copy(b, m.Mem[a:]) })
	case transport.MemLand:
		return m.Scatter(op.WR.SGE, op.Off, op.Buf)
	case transport.MemScatter:
		return m.Scatter(op.Recv.SGE, op.Off, op.Buf)
	case transport.MemInvalidate:
		delete(m.Keys, op.RKey)
		return transport.MemOK
	default: // remote memory, under a key
	}
	k, ok := m.Keys[op.RKey]
	n := uint64(len(op.Buf))
	atomic := op.Kind == transport.MemCmpSwap || op.Kind == transport.MemFetchAdd
	if atomic {
		n = 8
	} else if op.Kind == transport.MemCheckRead || op.Kind == transport.MemCheckWrite {
		n = op.Swap
	} else if op.Kind == transport.MemWrite {
		n = max(n, op.Swap)
	}
	if !ok || op.Addr < k.Lo || op.Addr+n > k.Hi || op.Addr+n < op.Addr ||
		(op.Kind == transport.MemWrite || op.Kind == transport.MemCheckWrite) && !k.Write || (op.Kind == transport.MemRead || op.Kind == transport.MemCheckRead) && !k.Read || atomic && !k.Atomic {
		return transport.MemAccess
	}
	shift := m.Shift[op.RKey]
	switch op.Kind {
	case transport.MemCheckRead, transport.MemCheckWrite:
	case transport.MemWrite:
		copy(m.Mem[op.Addr+shift:], op.Buf)
	case transport.MemRead:
		copy(op.Buf, m.Mem[op.Addr+shift:])
	default:
		if op.Addr%8 != 0 {
			return transport.MemInvalid
		}
		p := m.Mem[op.Addr+shift:][:8]
		op.Result = binary.LittleEndian.Uint64(p)
		if op.Kind == transport.MemFetchAdd {
			binary.LittleEndian.PutUint64(p, op.Result+op.Swap)
		} else if op.Result == op.Compare {
			binary.LittleEndian.PutUint64(p, op.Swap)
		}
	}
	return transport.MemOK
}

// Scatter writes buf to the pieces of list from byte off on.
func (m *Memory) Scatter(list []transport.SGE, off uint32, buf []byte) transport.MemErr {
	return walk(list, off, buf, func(a uint64, b []byte) { copy(m.Mem[a:], b) })
}

// walk applies f to the pieces of list that bytes off … off+len(buf) fall into.
func walk(list []transport.SGE, off uint32, buf []byte, f func(addr uint64, b []byte)) transport.MemErr {
	for _, s := range list {
		if off >= s.Length {
			off -= s.Length
			continue
		}
		n := min(int(s.Length-off), len(buf))
		f(s.Addr+uint64(off), buf[:n])
		buf, off = buf[n:], 0
		if len(buf) == 0 {
			return transport.MemOK
		}
	}
	if len(buf) > 0 {
		return transport.MemAccess
	}
	return transport.MemOK
}

// RunLocal is that of transport.Host: a window opens as a key like any other, with all rights, and a key ends.
func (m *Memory) RunLocal(_ any, wr *transport.SendWR) transport.Status {
	if m.Local != nil {
		m.Local(wr)
	}
	if wr.Op == transport.OpBindMW {
		if wr.Compare == 0 {
			return transport.MWBindErr
		}
		m.Keys[wr.RKey] = Key{Lo: wr.RemoteAddr, Hi: wr.RemoteAddr + wr.Compare, Write: true, Read: true, Atomic: true}
		return transport.OK
	}
	if _, ok := m.Keys[wr.Imm]; !ok {
		return transport.LocQPOpErr
	}
	delete(m.Keys, wr.Imm)
	return transport.OK
}
