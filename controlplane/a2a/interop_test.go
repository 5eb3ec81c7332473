package a2a_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	peer "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"

	"agentic-sandbox.aiwg.io/sandbox/api/extensions"
)

// TestInteropGoSDK drives the surface with the client of the Go SDK.
func TestInteropGoSDK(t *testing.T) {
	r := newRig(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	card, err := agentcard.NewResolver(http.DefaultClient).Resolve(ctx, r.url+"/agents/"+idA)
	if err != nil {
		t.Fatal(err)
	}
	if card.Name != "demo" || len(card.SupportedInterfaces) != 4 || !card.Capabilities.Streaming || len(card.Skills) != 1 {
		t.Errorf("card: %+v", card)
	}
	for _, iface := range card.SupportedInterfaces[:2] { // the others are those of 0.3
		t.Run(string(iface.ProtocolBinding), func(t *testing.T) {
			c, err := a2aclient.NewFromEndpoints(ctx, []*peer.AgentInterface{iface})
			if err != nil {
				t.Fatal(err)
			}
			drive(a2aclient.AttachServiceParams(ctx, a2aclient.ServiceParams{
				"A2A-Extensions": {"https://example.org/other/v1", extensions.Runtime}, // repeated lines, as it sends them
			}), t, c, nil)
			_, err = c.SendMessage(ctx, &peer.SendMessageRequest{Message: peer.NewMessage(peer.MessageRoleUser, peer.NewTextPart("x"))})
			// On JSON-RPC this client takes any status but 200 for a broken
			// transport; runtime/v1 asks for 400 on every binding.
			if err == nil || iface.ProtocolBinding == peer.TransportProtocolHTTPJSON && !errors.Is(err, peer.ErrExtensionSupportRequired) {
				t.Errorf("without the extension: %v", err)
			}
		})
	}
}

// drive does what a client does with tasks. noList is the error of a version
// that cannot list them, if that is so.
func drive(ctx context.Context, t *testing.T, c *a2aclient.Client, noList error) {
	t.Helper()
	request := func(text string) *peer.SendMessageRequest {
		return &peer.SendMessageRequest{Message: peer.NewMessage(peer.MessageRoleUser, peer.NewTextPart(text))}
	}
	sent, err := c.SendMessage(ctx, request("hello"))
	if err != nil {
		t.Fatal(err)
	}
	tk, ok := sent.(*peer.Task)
	if !ok || tk.Status.State != peer.TaskStateCompleted || tk.Artifacts[0].Parts[0].Text() != "hello" || tk.Metadata["runtime.kind"] != "vm" {
		t.Fatalf("send: %+v", sent)
	}
	got, err := c.GetTask(ctx, &peer.GetTaskRequest{ID: tk.ID})
	if err != nil || got.ID != tk.ID || got.Status.State != peer.TaskStateCompleted || got.Status.Timestamp == nil {
		t.Errorf("get: %+v, %v", got, err)
	}
	if _, err := c.CancelTask(ctx, &peer.CancelTaskRequest{ID: tk.ID}); !errors.Is(err, peer.ErrTaskNotCancelable) {
		t.Errorf("cancel of a completed task: %v", err)
	}
	if _, err := c.GetTask(ctx, &peer.GetTaskRequest{ID: "no"}); !errors.Is(err, peer.ErrTaskNotFound) {
		t.Errorf("get of no task: %v", err)
	}
	list, err := c.ListTasks(ctx, &peer.ListTasksRequest{PageSize: 1})
	if err == nil && (len(list.Tasks) != 1 || list.Tasks[0].ID != tk.ID) || err != nil && !errors.Is(err, noList) {
		t.Errorf("list: %+v, %v", list, err)
	}

	var text strings.Builder
	var states []peer.TaskState
	collect := func(e peer.Event) {
		switch e := e.(type) {
		case *peer.Task:
			states = append(states, e.Status.State)
		case *peer.TaskStatusUpdateEvent:
			states = append(states, e.Status.State)
		case *peer.TaskArtifactUpdateEvent:
			for _, p := range e.Artifact.Parts {
				text.WriteString(p.Text())
			}
		}
	}
	for e, err := range c.SendStreamingMessage(ctx, request("sh:echo one; echo two")) {
		if err != nil {
			t.Fatal(err)
		}
		collect(e)
	}
	if text.String() != "one\ntwo\n" || states[len(states)-1] != peer.TaskStateCompleted {
		t.Errorf("stream: %q %v", text.String(), states)
	}

	long := request("sh:echo begun; sleep 600")
	long.Config = &peer.SendMessageConfig{ReturnImmediately: true}
	sent, err = c.SendMessage(ctx, long)
	if err != nil {
		t.Fatal(err)
	}
	id := sent.(*peer.Task).ID
	states = nil
	for e, err := range c.SubscribeToTask(ctx, &peer.SubscribeToTaskRequest{ID: id}) {
		if err != nil {
			t.Fatal(err)
		}
		if collect(e); len(states) == 1 && states[0] != peer.TaskStateCanceled {
			states = append(states, "canceling")
			if tk, err := c.CancelTask(ctx, &peer.CancelTaskRequest{ID: id}); err != nil || tk.Status.State != peer.TaskStateCanceled {
				t.Errorf("cancel: %+v, %v", tk, err)
			}
		}
	}
	if states[len(states)-1] != peer.TaskStateCanceled {
		t.Errorf("subscribe: %v", states)
	}
}
