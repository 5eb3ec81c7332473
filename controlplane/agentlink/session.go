package agentlink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "agentic-sandbox.aiwg.io/sandbox/api/agent/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/vm"
)

// Flow control windows. They bound what a guest can make us hold for one
// stream whose reader is slow, and are fixed so that no estimator grows them.
const (
	streamWindow = 512 << 10
	connWindow   = 2 << 20
	maxHeaders   = 16 << 10
)

// session is one connection on which the right agent has answered.
type session struct {
	conn   net.Conn
	cc     *grpc.ClientConn
	client agentv1.AgentClient
	hello  *agentv1.HelloResponse
	gone   chan struct{} // closed by kill
	killed atomic.Bool
}

// kill says that the connection is of no use any more.
func (s *session) kill() {
	if !s.killed.Swap(true) {
		close(s.gone)
	}
}

func (s *session) dead() bool {
	return s.killed.Load() || s.cc.GetState() != connectivity.Ready
}

// await blocks until the connection has broken, was killed, or ctx ends.
func (s *session) await(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		select {
		case <-s.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	for s.cc.GetState() == connectivity.Ready && s.cc.WaitForStateChange(ctx, connectivity.Ready) {
		continue
	}
	cancel()
	<-stop
}

func (s *session) close() {
	s.kill()
	_ = s.cc.Close()
	_ = s.conn.Close()
}

// open makes one connection and greets. A *instance.Fault or vm.ErrGone means
// that trying again is of no use.
func (l *Link) open(ctx context.Context) (*session, error) {
	dctx, cancel := context.WithTimeout(ctx, l.opts.DialTimeout)
	conn, err := l.dial(dctx)
	cancel()
	if err != nil {
		if errors.Is(err, vm.ErrGone) {
			return nil, fault(instance.Guest, CodeGone, "",
				fmt.Errorf("cannot dial agent of instance %q: %w", l.opts.InstanceID, err))
		}
		return nil, fmt.Errorf("cannot dial agent: %w", err)
	}
	cc, err := newClient(conn, l.opts.Keepalive)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	s := &session{conn: conn, cc: cc, client: agentv1.NewAgentClient(cc), gone: make(chan struct{})}
	if s.hello, err = l.greet(ctx, s.client); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// newClient makes a gRPC client that lives as long as conn and never dials.
func newClient(conn net.Conn, probe time.Duration) (*grpc.ClientConn, error) {
	var used atomic.Bool
	dialer := func(context.Context, string) (net.Conn, error) {
		if used.Swap(true) {
			return nil, errBroken
		}
		return conn, nil
	}
	cc, err := grpc.NewClient("passthrough:///agent",
		grpc.WithContextDialer(dialer),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(agentv1.MaxMessage),
			grpc.MaxCallSendMsgSize(agentv1.MaxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: probe, Timeout: probe, PermitWithoutStream: true}),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot make agent client: %w", err)
	}
	return cc, nil
}

// greet calls Hello and checks the answer.
func (l *Link) greet(ctx context.Context, c agentv1.AgentClient) (*agentv1.HelloResponse, error) {
	hctx, cancel := context.WithTimeout(ctx, l.opts.HelloTimeout)
	defer cancel()
	versions := []uint32{agentv1.ProtocolVersion}
	h, err := c.Hello(hctx, &agentv1.HelloRequest{
		ProtocolVersions: versions,
		InstanceId:       l.opts.InstanceID.String(),
		HostVersion:      l.opts.HostVersion,
		HostTime:         timestamppb.Now(),
	})
	if status.Code(err) == codes.FailedPrecondition {
		return nil, fault(instance.Guest, CodeRefused, "remove the machine, or rebuild the images if the versions differ",
			fmt.Errorf("cannot use agent: it refused to answer: %s", guestText(status.Convert(err).Message())))
	}
	if err != nil {
		// No fault yet: the agent may only just be starting.
		return nil, errors.New(statusFault("greet agent", err, nil).Error())
	}
	if h.GetInstanceId() != l.opts.InstanceID.String() {
		return nil, fault(instance.Guest, CodeWrongInstance, "remove the machine",
			fmt.Errorf("cannot use agent: instance %s answered instead of %q", guestText(h.GetInstanceId()), l.opts.InstanceID))
	}
	if !slices.Contains(versions, h.GetProtocolVersion()) {
		return nil, fault(instance.Guest, CodeVersion, "rebuild the images, so that agent and host are of one version",
			fmt.Errorf("cannot use agent: it speaks protocol version %d, this host version %d",
				h.GetProtocolVersion(), agentv1.ProtocolVersion))
	}
	if err := checkHello(h); err != nil {
		return nil, err
	}
	return h, nil
}
