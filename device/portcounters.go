package device

import (
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/rocev2"
	"github.com/metaroce/metaroce/transport/wire"
	ibwire "github.com/metaroce/metaroce/transport/wire/ib"
)

// PortCounter is a counter of the port under the name that it has in sysfs.
type PortCounter struct {
	Name  string
	Value uint64
}

// PortCounters are the counters of the port as programs read them in /sys/class/infiniband: those that InfiniBand defines
// (counters) and those that RDMA NICs have besides (hw_counters: the names of mlx5, and below them those of rxe). What stands
// for what is in docs/view.md.
func (n *NIC) PortCounters() (counters, hw []PortCounter) {
	mr, ib := n.engineCounters()
	return n.ibCounters(mr, ib), n.hwCounters(mr, ib)
}

// engineCounters are those of both engines; of one that is not there, zeros.
func (n *NIC) engineCounters() (*metaroce.Counters, *rocev2.Counters) {
	mr, ib := &metaroce.Counters{}, &rocev2.Counters{}
	find := func(e Engine) {
		switch e := e.(type) {
		case mrEngine:
			mr = &e.C
		case ibEngine:
			ib = &e.C
		}
	}
	find(n.eng)
	if m, ok := n.eng.(*mux); ok {
		find(m.mr)
		find(m.ib)
	}
	return mr, ib
}

func sum(list []uint64) (s uint64) {
	for _, v := range list {
		s += v
	}
	return s
}

func (n *NIC) ibCounters(mr *metaroce.Counters, ib *rocev2.Counters) []PortCounter {
	c := &n.C
	var p PlaneCounters
	for _, pl := range n.planes {
		p.RxPackets += pl.C.RxPackets
		p.RxBytes += pl.C.RxBytes
		p.TxPackets += pl.C.TxPackets
		p.TxBytes += pl.C.TxBytes
		p.TxDropped += pl.C.TxDropped
		p.TxRefused += pl.C.TxRefused
	}
	tx, rx := p.TxPackets+c.LoopbackPackets-c.EchoPackets, p.RxPackets+c.LoopbackPackets
	rxGroup := c.RxMulticast + c.EchoPackets
	return []PortCounter{
		{"port_xmit_data", (p.TxBytes + c.LoopbackBytes - c.EchoBytes) / 4}, // in words, as InfiniBand has it
		{"port_rcv_data", (p.RxBytes + c.LoopbackBytes) / 4},
		{"port_xmit_packets", tx},
		{"port_rcv_packets", rx},
		{"unicast_xmit_packets", tx - min(tx, c.TxMulticast)},
		{"unicast_rcv_packets", rx - min(rx, rxGroup)},
		{"multicast_xmit_packets", c.TxMulticast},
		{"multicast_rcv_packets", rxGroup},
		{"port_rcv_errors", sum(mr.Drop[:]) + sum(ib.Drop[:])},
		{"port_rcv_constraint_errors", ib.DropPKey},
		{"port_xmit_discards", p.TxDropped},
		{"port_xmit_wait", p.TxRefused},
		{"link_downed", c.LinkDowns},
		// what no cable, no switch and no virtual lane can bring about here
		{"symbol_error", 0},
		{"link_error_recovery", 0},
		{"port_rcv_remote_physical_errors", 0},
		{"port_rcv_switch_relay_errors", 0},
		{"port_xmit_constraint_errors", 0},
		{"local_link_integrity_errors", 0},
		{"excessive_buffer_overrun_errors", 0},
		{"VL15_dropped", 0},
	}
}

func (n *NIC) hwCounters(mr *metaroce.Counters, ib *rocev2.Counters) []PortCounter {
	c := &n.C
	sent, recv := &c.SendFailed, &c.RecvFailed
	gaps := mr.RxGaps + ib.DropAhead + ib.DropUCGap
	duplicates := mr.DupPSN + mr.DropDup + ib.Duplicates
	rnrSent, rnrReceived := mr.RefusedRNR+ib.TxRNR, mr.RNRReceived+ib.RxRNR
	naks := mr.LostGap + mr.LostTime + mr.LostTrim + ib.RxSequenceNaks
	return []PortCounter{
		{"out_of_sequence", gaps},
		{"packet_seq_err", naks},
		{"local_ack_timeout_err", mr.LostTimeout + mr.TailResends + ib.Timeouts},
		{"implied_nak_seq_err", ib.ResponseGaps},
		{"duplicate_request", duplicates},
		{"rnr_nak_retry_err", rnrReceived},
		{"out_of_buffer", rnrSent + ib.DropUDNoRecv + ib.DropUCNoRecv},
		{"rx_write_requests", mr.RxWrites + ib.RxWrites},
		{"rx_read_requests", mr.RxReads + ib.RxReads},
		{"rx_atomic_requests", mr.RxAtomics + ib.RxAtomics},
		{"rx_icrc_encapsulated", mr.Drop[wire.DropICRC] + ib.Drop[ibwire.DropICRC]},
		{"np_ecn_marked_roce_packets", mr.RxMarked + ib.RxMarked},
		{"np_cnp_sent", mr.RxMarked + ib.TxCNP},
		{"rp_cnp_handled", mr.AcksMarked + ib.RxCNP},
		{"rp_cnp_ignored", 0},
		{"req_cqe_error", sum(sent[:])},
		{"req_cqe_flush_error", sent[transport.WRFlushErr]},
		{"req_remote_access_errors", sent[transport.RemAccessErr]},
		{"req_remote_invalid_request", sent[transport.RemInvReqErr]},
		{"req_transport_retries_exceeded", sent[transport.RetryExcErr]},
		{"req_rnr_retries_exceeded", sent[transport.RnrRetryExcErr]},
		{"resp_cqe_error", sum(recv[:])},
		{"resp_cqe_flush_error", recv[transport.WRFlushErr]},
		{"resp_local_length_error", recv[transport.LocLenErr]},
		{"resp_remote_access_errors", c.RemoteAccessErrors},
		{"roce_adp_retrans", 0},
		{"roce_adp_retrans_to", 0},
		{"roce_slow_restart", 0},
		{"roce_slow_restart_cnps", 0},
		{"roce_slow_restart_trans", 0},
		// of rxe
		{"sent_pkts", mr.TxPackets + mr.TxAcks + ib.TxPackets},
		{"rcvd_pkts", mr.RxPackets + ib.RxPackets},
		{"out_of_seq_request", gaps},
		{"rcvd_seq_err", naks},
		{"rcvd_rnr_err", rnrReceived},
		{"send_rnr_err", rnrSent},
		{"retry_exceeded_err", sent[transport.RetryExcErr]},
		{"retry_rnr_exceeded_err", sent[transport.RnrRetryExcErr]},
		{"completer_retry_err", mr.Retransmits + ib.Retransmits},
		{"send_err", sum(sent[:]) - sent[transport.WRFlushErr]},
		{"link_downed", c.LinkDowns},
		{"rdma_sends", c.SendWRs},
		{"rdma_recvs", c.RecvWRs},
	}
}

// Up reports whether the port is active: at least one plane is up.
func (n *NIC) Up() bool { return n.planesUp() > 0 }

// PortCounterNames are the names of all that PortCounters returns.
func PortCounterNames() (counters, hw []string) {
	c, h := (&NIC{}).PortCounters()
	for _, x := range c {
		counters = append(counters, x.Name)
	}
	for _, x := range h {
		hw = append(hw, x.Name)
	}
	return counters, hw
}
