package ib

// Golden packets of the other connected services: the operations of RC under their own opcodes.

func goldenUC() []golden {
	v4 := over{tos: 0x02, id: 0x4321, port: 0xc321}
	v6 := over{v6: true, tos: 0x02, flow: 0x12345, port: 0xd11d}
	psn := uint64(0xfffffc)
	h := func(op uint64) wireHead {
		psn = (psn + 1) & 0xffffff
		return wireHead{op: op, qpn: 0x31 + op, psn: psn}
	}
	const mtu = 256
	solicited := h(0x24)
	solicited.se = 1
	return []golden{
		beginPacket("uc-send-first", h(0x20), mtu).end(v4, mtu),
		beginPacket("uc-send-middle", h(0x21), mtu).end(v4, mtu),
		beginPacket("uc-send-last", h(0x22), 69).end(v6, 69),
		beginPacket("uc-send-last-imm", h(0x23), 70).one("ImmDt", "Imm", 32, 0x01020304).end(v4, 70),
		beginPacket("uc-send-only-solicited", solicited, 71).end(v4, 71),
		beginPacket("uc-send-only-imm", h(0x25), 72).one("ImmDt", "Imm", 32, 0xfffefdfc).end(v6, 72),
		beginPacket("uc-write-first", h(0x26), mtu).reth(0x00007f1234567000, 0x01020304, 2*mtu+73).end(v4, mtu),
		beginPacket("uc-write-middle", h(0x27), mtu).end(v4, mtu),
		beginPacket("uc-write-last", h(0x28), 73).end(v4, 73),
		beginPacket("uc-write-last-imm", h(0x29), 74).one("ImmDt", "Imm", 32, 7).end(v4, 74),
		beginPacket("uc-write-only", h(0x2a), 75).reth(0xfffffffffffff000, 0xffffffff, 75).end(v6, 75),
		beginPacket("uc-write-only-imm", h(0x2b), 76).reth(0x10, 0x20, 76).one("ImmDt", "Imm", 32, 8).end(v4, 76),
	}
}

func (w *bitWriter) xrc(srqn uint64) *bitWriter {
	w.begin("XRCETH")
	w.put(8, 0)
	w.f("SRQN", 24, srqn)
	return w
}

func goldenXRC() []golden {
	v4 := over{tos: 0x02, id: 0x5678, port: 0xc777}
	v6 := over{v6: true, tos: 0x02, flow: 0x23456, port: 0xd77d}
	psn := uint64(0xfffff0)
	h := func(op uint64) wireHead {
		psn = (psn + 1) & 0xffffff
		return wireHead{op: op, qpn: 0x41 + op, psn: psn, ack: op & 1}
	}
	const mtu = 256
	const srq = 0xa1b2c3
	return []golden{
		beginPacket("xrc-send-first", h(0xa0), mtu).xrc(srq).end(v4, mtu),
		beginPacket("xrc-send-middle", h(0xa1), mtu).xrc(srq).end(v4, mtu),
		beginPacket("xrc-send-last", h(0xa2), 69).xrc(srq).end(v6, 69),
		beginPacket("xrc-send-last-imm", h(0xa3), 70).xrc(1).one("ImmDt", "Imm", 32, 0x01020304).end(v4, 70),
		beginPacket("xrc-send-only", h(0xa4), 71).xrc(0xffffff).end(v4, 71),
		beginPacket("xrc-send-only-imm", h(0xa5), 72).xrc(srq).one("ImmDt", "Imm", 32, 0xfffefdfc).end(v6, 72),
		beginPacket("xrc-write-first", h(0xa6), mtu).xrc(srq).reth(0x00007f1234567000, 0x01020304, 2*mtu+73).end(v4, mtu),
		beginPacket("xrc-write-middle", h(0xa7), mtu).xrc(srq).end(v4, mtu),
		beginPacket("xrc-write-last", h(0xa8), 73).xrc(srq).end(v4, 73),
		beginPacket("xrc-write-last-imm", h(0xa9), 74).xrc(srq).one("ImmDt", "Imm", 32, 7).end(v4, 74),
		beginPacket("xrc-write-only", h(0xaa), 75).xrc(srq).reth(0xfffffffffffff000, 0xffffffff, 75).end(v6, 75),
		beginPacket("xrc-write-only-imm", h(0xab), 76).xrc(srq).reth(0x10, 0x20, 76).one("ImmDt", "Imm", 32, 8).end(v4, 76),
		beginPacket("xrc-read-request", h(0xac), 0).xrc(srq).reth(0x123456789abcdef0, 0x55667788, 0x7fffffff).end(v4, 0),
		beginPacket("xrc-read-response-first", h(0xad), mtu).aeth(0x1f, 0x010203).end(v4, mtu),
		beginPacket("xrc-read-response-middle", h(0xae), mtu).end(v4, mtu),
		beginPacket("xrc-read-response-last", h(0xaf), 77).aeth(0x1f, 0x010204).end(v4, 77),
		beginPacket("xrc-read-response-only", h(0xb0), 78).aeth(0x1f, 0x010205).end(v6, 78),
		beginPacket("xrc-ack", h(0xb1), 0).aeth(0x1f, 0xffffff).end(v6, 0),
		beginPacket("xrc-atomic-ack", h(0xb2), 0).aeth(0x1f, 10).one("AtomicAckETH", "Result", 64, 0xfedcba9876543210).end(v4, 0),
		beginPacket("xrc-compare-and-swap", h(0xb3), 0).xrc(srq).atomic(0x1000, 0x11223344, 0x0102030405060708, 0x1112131415161718).end(v4, 0),
		beginPacket("xrc-fetch-and-add", h(0xb4), 0).xrc(srq).atomic(0xfffffffffffffff8, 0x11223344, 1, 0).end(v6, 0),
		beginPacket("xrc-send-last-inv", h(0xb6), 79).xrc(srq).one("IETH", "RKey", 32, 0x0a0b0c0d).end(v4, 79),
		beginPacket("xrc-send-only-inv", h(0xb7), 80).xrc(srq).one("IETH", "RKey", 32, 0x0a0b0c0e).end(v4, 80),
	}
}
