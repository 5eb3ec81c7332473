package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/auth/localhost"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/instance"
)

// drainTimeout is what open requests get when the daemon ends; streams are
// cut, their tasks go on.
const drainTimeout = 5 * time.Second

// serve runs the daemon until ctx ends.
func serve(ctx context.Context, c config, out io.Writer, log *slog.Logger) (err error) {
	d, err := open(ctx, c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()

	stopMetrics, err := d.serveMetrics(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopMetrics()) }()

	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return listenFault(c.Listen, err)
	}
	local := "http://" + reachableAddress(l.Addr())
	url := cmp.Or(c.PublicURL, local)
	c.Conformance.announce(ctx, log)
	if !loopback(l.Addr()) {
		log.WarnContext(ctx, "listening beyond loopback without TLS: put a TLS proxy in front", "address", l.Addr().String())
	}
	// Requests live until the drain is over, not only until the signal.
	base, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	server := &http.Server{
		Handler:           steady(pace, patience, plain(c.Surface.Domain, d.handler(url))),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if err := d.start(ctx); err != nil {
		return errors.Join(err, l.Close())
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()

	if err := d.announce(local); err != nil {
		if !errors.Is(err, syscall.ENOSPC) {
			return errors.Join(err, server.Close())
		}
		// A removal makes room again, and needs a daemon.
		log.ErrorContext(ctx, "cannot tell clients on this host where the daemon is", "url", local, "error", err)
	}
	if _, err := fmt.Fprintf(out, "sandboxd ready url=%s state_dir=%s pid=%d\n", url, c.StateDir, os.Getpid()); err != nil {
		return errors.Join(err, server.Close())
	}
	notify(log, systemd.SdNotifyReady)
	select {
	case <-ctx.Done():
		d.health.ending.Store(true)
		log.InfoContext(ctx, "ending")
	case err := <-served:
		return fmt.Errorf("cannot serve: %w", err)
	}
	notify(log, systemd.SdNotifyStopping)
	return d.end(server, endRequests)
}

// end lets open requests finish, and stops the machines if asked to.
func (d *daemon) end(server *http.Server, endRequests context.CancelFunc) error {
	ctx := context.Background()
	var errs []error
	if d.cfg.StopMachines {
		stopCtx, cancel := context.WithTimeout(ctx, d.cfg.StopTimeout)
		errs = append(errs, d.fleet.StopAll(stopCtx))
		cancel()
	}
	drainCtx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	stop := context.AfterFunc(drainCtx, endRequests)
	defer stop()
	if err := server.Shutdown(drainCtx); err != nil {
		errs = append(errs, server.Close())
	}
	return errors.Join(append(errs, localhost.Remove(d.cfg.StateDir))...)
}

func notify(log *slog.Logger, state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		log.Warn("cannot notify systemd", "error", err)
	}
}

func listenFault(addr string, err error) error {
	f := &instance.Fault{Blame: instance.Caller, Code: "listen.failed", Err: fmt.Errorf("cannot listen on %q: %w", addr, err)}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		f.Code = "listen.in_use"
		f.Hint = "another program has that port; choose another with --listen, such as 127.0.0.1:0 for any free one"
	case errors.Is(err, syscall.EACCES):
		f.Hint = "ports below 1024 need root; choose a higher one with --listen"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		f.Hint = "this host does not have that address; choose one that it has with --listen"
	default:
		f.Hint = "write an address of this host and a port, such as --listen " + defaultListen
	}
	return f
}

func loopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// reachableAddress is how a client on this host reaches the listener: an
// unspecified address becomes loopback.
func reachableAddress(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return a.String()
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
}
