#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A control socket without a NIC behind it: answers HELLO, LIST, OPEN, the queries and object creation, so that the
describing half of the library can be tested alone.

    fake_daemon.py SOCKET [--nics a/mr0,b/mr0] [--abi 1] -- PROGRAM ARGS...    runs PROGRAM with MR_SOCKET set, exits with its code
"""
import argparse
import array
import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading

MAGIC = 0x4345524D
HDR = struct.Struct("<HHIIi")
OP = dict(HELLO=1, LIST=2, OPEN=3, QUERY_PORT=4, QUERY_GID=5, ALLOC_PD=16, FREE_PD=17, REG_MR=18, DEREG_MR=19,
          CREATE_CHANNEL=24, DESTROY_CHANNEL=25, CREATE_CQ=26, DESTROY_CQ=27, RESIZE_CQ=28, CREATE_QP=40, MODIFY_QP=41,
          QUERY_QP=42, DESTROY_QP=43, CREATE_AH=44, DESTROY_AH=45)
NAME = {v: k for k, v in OP.items()}
EINVAL, ENODATA, EOPNOTSUPP, EPROTO, EPROTONOSUPPORT = 22, 61, 95, 71, 93
GUID = bytes.fromhex("020000fffe000001")
GID = bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 1])


def text(s, n):
    return s.encode()[: n - 1].ljust(n, b"\0")


def device_attr():
    u32 = [0x0200, 1, 1,                      # vendor, part, hw
           4096, 16384, 32, 32, 4096, 65536, 65536, 4096,   # qp wr sge sge_rd cq cqe mr pd
           16, 16, 65536, 1,                   # rd_atom, init_rd_atom, res_rd_atom, atomic_cap
           0, 0, 0, 4096, 0,                   # srq x3, ah, mw
           0, 0, 0,                            # mcast x2, xrcd
           1, 15, 1, 2, 256,                   # pkeys, ack delay, ports, vectors, inline
           0, 0]
    return GUID + GUID + struct.pack("<QQQ", 1 << 40, 0xFFFFF000, 0) + struct.pack("<30I", *u32) + \
        text("0.0-fake", 64) + text("MROCE_FAKE", 64)


class Client:
    def __init__(self, sock, nics, abi):
        self.sock, self.nics, self.abi, self.handles, self.keep = sock, nics, abi, 0, []
        self.greeted = self.opened = False

    def new(self):
        self.handles += 1
        return self.handles

    def run(self):
        while True:
            msg, anc, _, _ = self.sock.recvmsg(65536, 4096)
            if not msg:
                return
            fds = array.array("i")
            for level, kind, data in anc:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            op, _, length, seq, _ = HDR.unpack_from(msg)
            body, give = b"", []
            if length != len(msg) or (not self.greeted and op != OP["HELLO"]):
                status = EPROTO
            else:
                try:
                    status, body, give = self.answer(op, msg, list(fds))
                except (struct.error, IndexError):
                    status = EINVAL
            reply = HDR.pack(op, 1, HDR.size + len(body), seq, status) + body
            socket.send_fds(self.sock, [reply], give) if give else self.sock.send(reply)
            for fd in list(fds) + give:
                os.close(fd)

    def answer(self, op, msg, fds):
        name = NAME.get(op)
        if name == "HELLO":
            magic, major = struct.unpack_from("<IH", msg, 16)
            if magic != MAGIC:
                return EPROTO, b"", []
            self.greeted = True
            return 0 if major == self.abi else EPROTONOSUPPORT, \
                struct.pack("<HHiII", self.abi, 0, os.getpid(), len(self.nics), 1) + text("fake", 32), []
        if name == "LIST":
            first = struct.unpack_from("<I", msg, 16)[0]
            out = b"".join(text(n, 64) + text(n.split("/")[-1], 32) + GUID[:7] + bytes([i + 1]) +
                           struct.pack("<II", i, 1) for i, n in enumerate(self.nics[first:], first))
            return 0, struct.pack("<II", max(0, len(self.nics) - first), len(self.nics)) + out, []
        if name == "OPEN":
            size = struct.unpack_from("<Q", msg, 16)[0]
            if len(fds) != 1 or os.fstat(fds[0]).st_size != size or fcntl.fcntl(fds[0], 1034) != 7:  # F_GET_SEALS
                return EINVAL, b"", []
            bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.keep.append(ours)
            self.opened = True
            return 0, struct.pack("<II", 1, 0) + device_attr(), [bell, theirs.detach()]
        if not self.opened:
            return EINVAL, b"", []
        if name == "QUERY_PORT":
            if struct.unpack_from("<I", msg, 16)[0] != 1:
                return EINVAL, b"", []
            return 0, struct.pack("<12IQII", 4, 5, 5, 2, 1 << 26, 1 << 30, 1, 2, 32, 5, 2, 0, 100000, 4, 4), []
        if name == "QUERY_GID":
            port, index = struct.unpack_from("<II", msg, 16)
            if port != 1 or index > 1:
                return EINVAL, b"", []
            if index == 1:
                return ENODATA, b"", []
            return 0, GID + struct.pack("<IIII", 0, 1, 2, 0), []
        if name == "REG_MR":
            h = self.new()
            return 0, struct.pack("<IIII", h, h << 8, h << 8, 0), []
        if name == "CREATE_CHANNEL":
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.keep.append(ours)
            return 0, struct.pack("<II", self.new(), 0), [theirs.detach()]
        if name == "CREATE_QP":
            return 0, struct.pack("<II", self.new(), 16 + self.handles), []
        if name in ("DESTROY_CQ", "DESTROY_QP"):
            return 0, struct.pack("<II", 0, 0), []
        if name in ("FREE_PD", "DEREG_MR", "DESTROY_CHANNEL", "DESTROY_AH", "RESIZE_CQ", "MODIFY_QP"):
            return 0, b"", []
        if name == "QUERY_QP":
            return 0, bytes(152), []
        if name in ("ALLOC_PD", "CREATE_CQ", "CREATE_AH"):
            return 0, struct.pack("<II", self.new(), 0), []
        return EOPNOTSUPP, b"", []


def serve(listener, nics, abi):
    while True:
        try:
            s, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=Client(s, nics, abi).run, daemon=True).start()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("socket")
    p.add_argument("--nics", default="a/mr0")
    p.add_argument("--abi", type=int, default=1)
    args = sys.argv[1:]
    cut = args.index("--") if "--" in args else len(args)
    a, cmd = p.parse_args(args[:cut]), args[cut + 1:]
    if os.path.exists(a.socket):
        os.unlink(a.socket)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(a.socket)
    listener.listen(16)
    threading.Thread(target=serve, args=(listener, a.nics.split(","), a.abi), daemon=True).start()
    if not cmd:
        threading.Event().wait()
    try:
        env = dict(os.environ, MR_SOCKET=a.socket)
        if env.get("MR_PRELOAD"):
            env["LD_PRELOAD"] = env["MR_PRELOAD"]
        code = subprocess.run(cmd, env=env, timeout=120).returncode
    finally:
        os.unlink(a.socket)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
