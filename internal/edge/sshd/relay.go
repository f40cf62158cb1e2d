package sshd

import (
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/cay-run/cay/internal/conns"
)

// relay serves a visit whose sandbox is another machine's: channels and what is asked in
// them go there and back as they come.
func (v *visit) relay(far io.ReadWriteCloser, user string, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	defer far.Close()
	late := time.AfterFunc(greetWithin, func() { far.Close() })
	conn, back, asked, err := ssh.NewClientConn(conns.Stream{ReadWriteCloser: far}, "", &ssh.ClientConfig{
		User: user, HostKeyCallback: ssh.FixedHostKey(v.server.signer.PublicKey()),
	})
	late.Stop()
	if err != nil {
		v.log.Warn("the node of a sandbox does not serve SSH", "sandbox", v.who.sandbox, "err", err)
		v.refuse(textAway, channels, requests)
		return
	}
	v.log.Debug("SSH begins, on another node", "sandbox", v.who.sandbox, "team", v.who.team)
	v.work.Go(func() { ssh.DiscardRequests(requests) })
	v.work.Go(func() { ssh.DiscardRequests(asked) })
	v.work.Go(func() {
		for c := range back {
			_ = c.Reject(ssh.Prohibited, "nothing is opened from there")
		}
	})
	v.work.Go(v.askAlive)
	v.work.Go(func() {
		_ = conn.Wait() // that side is gone
		v.conn.Close()
	})
	v.each(channels, func(c ssh.NewChannel) { passChannel(conn, c) })
	v.cancel()
	v.conn.Close()
	conn.Close()
	v.work.Wait()
	v.log.Debug("SSH ends", "sandbox", v.who.sandbox)
}

const textAway = "the sandbox's node is away: try again"

// refuse tells a client that was let in why nothing opens, until it has gone.
func (v *visit) refuse(why string, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	late := time.AfterFunc(greetWithin, func() { v.conn.Close() })
	defer late.Stop()
	v.work.Go(func() { ssh.DiscardRequests(requests) })
	for c := range channels {
		_ = c.Reject(ssh.ConnectionFailed, why)
	}
	v.cancel()
	v.conn.Close()
	v.work.Wait()
}

// passChannel opens a channel on the other side too, and joins both to their end.
func passChannel(far ssh.Conn, c ssh.NewChannel) {
	out, told, err := far.OpenChannel(c.ChannelType(), c.ExtraData())
	if err != nil {
		var refused *ssh.OpenChannelError
		if !errors.As(err, &refused) {
			refused = &ssh.OpenChannelError{Reason: ssh.ConnectionFailed, Message: textAway}
		}
		_ = c.Reject(refused.Reason, refused.Message)
		return
	}
	in, asked, err := c.Accept()
	if err != nil {
		out.Close()
		ssh.DiscardRequests(told)
		return
	}
	var there, back sync.WaitGroup
	there.Go(func() {
		if _, err := io.Copy(out, in); err == nil {
			_ = out.CloseWrite()
		}
	})
	there.Go(func() {
		passRequests(out, asked)
		out.Close() // the client has closed its side
	})
	back.Go(func() { // after the end of one stream nothing of the other is sent
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(in, out) })
		both.Go(func() { _, _ = io.Copy(in.Stderr(), out.Stderr()) })
		both.Wait()
		_ = in.CloseWrite()
	})
	back.Go(func() { passRequests(in, told) }) // until that side has closed
	back.Wait()
	in.Close()
	there.Wait()
}

// passRequests sends what is asked in one channel in another, and the answers back.
func passRequests(to ssh.Channel, asked <-chan *ssh.Request) {
	for r := range asked {
		ok, err := to.SendRequest(r.Type, r.WantReply, r.Payload)
		if r.WantReply {
			_ = r.Reply(ok && err == nil, nil)
		}
	}
}
