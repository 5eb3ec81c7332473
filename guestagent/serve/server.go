package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/guestagent/command"
)

const (
	// maxStreams bounds the calls at one time on one connection: an
	// attachment for every run and as many short calls.
	maxStreams = 2 * agentv1.MaxRuns
	// streamWindow and connWindow are fixed, so that no pings measure the
	// link while nobody uses it.
	streamWindow = 256 << 10
	connWindow   = 1 << 20
	// pingAfter finds hosts that have gone without a word.
	pingAfter = 10 * time.Minute
	// pingMinimum is how often a host may ping us.
	pingMinimum = 5 * time.Second
	// endGrace is what a run gets between SIGTERM and SIGKILL when the machine
	// ends, endPatience the whole of the orderly end.
	endGrace    = 3 * time.Second
	endPatience = 15 * time.Second
)

// Server answers the agent contract on one listener.
type Server struct {
	grpc    *grpc.Server
	service *service
	ended   chan struct{} // closed when the host asks for the end
}

// New makes a server for the runs of a table.
func New(config Config, table *command.Table) (*Server, error) {
	if config.Accounts == "" {
		config.Accounts = "/etc"
	}
	s := &Server{ended: make(chan struct{})}
	var once sync.Once
	s.service = &service{
		config:   config,
		table:    table,
		nonce:    make([]byte, 16),
		powerOff: func() { once.Do(func() { close(s.ended) }) },
	}
	if _, err := rand.Read(s.service.nonce); err != nil {
		return nil, fmt.Errorf("cannot draw the boot nonce: %w", err)
	}
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(agentv1.MaxMessage),
		grpc.MaxSendMsgSize(agentv1.MaxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMinimum, PermitWithoutStream: true}),
	)
	agentv1.RegisterAgentServer(s.grpc, s.service)
	return s, nil
}

// Run serves until ctx ends or the host asks for the end, then ends all runs,
// lets their attachments hear of it, and returns. It says whether the host
// asked.
func (s *Server) Run(ctx context.Context, l net.Listener) (asked bool, err error) {
	failed := make(chan error, 1)
	go func() { failed <- s.grpc.Serve(l) }()
	select {
	case <-s.ended:
		asked = true
	case <-ctx.Done():
	case err = <-failed:
		failed <- nil
		err = fmt.Errorf("cannot serve: %w", err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.service.table.Close(endGrace)
		s.grpc.GracefulStop()
	}()
	patience := time.NewTimer(endPatience)
	defer patience.Stop()
	select {
	case <-stopped:
	case <-patience.C:
		// A process that not even SIGKILL ends: the program does instead.
		s.grpc.Stop()
		return asked, errors.Join(err, errors.New("runs did not end in time"))
	}
	err = errors.Join(err, <-failed)
	s.service.receivers.Wait()
	return asked, err
}
