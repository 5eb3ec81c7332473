package interop

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"

	peer "github.com/a2aproject/a2a-go/v2/a2a"
)

// webhook is a receiver on loopback.
type webhook struct {
	*httptest.Server
	told chan delivery // in order
}

type delivery struct {
	header http.Header
	body   []byte
}

func newWebhook() *webhook {
	w := &webhook{told: make(chan delivery, 64)}
	w.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil {
			w.told <- delivery{r.Header, body}
		}
	}))
	return w
}

// pushCreate makes one webhook with a message, and one later with credentials.
func (c *goCases) pushCreate(ctx context.Context) (err error) {
	c.hook, c.late = newWebhook(), newWebhook()
	if c.told, err = c.hold(ctx, "push", &peer.PushConfig{ID: "inline", URL: c.hook.URL, Token: "opaque-token"}); err != nil {
		return err
	}
	made, err := c.CreateTaskPushConfig(ctx, &peer.PushConfig{
		TaskID: c.told.ID, ID: "late", URL: c.late.URL, Auth: &peer.PushAuthInfo{Scheme: "Bearer", Credentials: "webhook-secret"},
	})
	if err != nil || made.TaskID != c.told.ID || made.ID != "late" || made.URL != c.late.URL || made.Auth == nil ||
		made.Auth.Scheme != "Bearer" || made.Auth.Credentials != "" {
		return wrong("the webhook without its secret", made, err)
	}
	return nil
}

func (c *goCases) pushGet(ctx context.Context) error {
	for id, url := range map[string]string{"inline": c.hook.URL, "late": c.late.URL} {
		got, err := c.GetTaskPushConfig(ctx, &peer.GetTaskPushConfigRequest{TaskID: c.told.ID, ID: id})
		if err != nil || got.ID != id || got.URL != url || got.Token != "" {
			return wrong("the webhook without its token", got, err)
		}
	}
	return c.noWebhook(ctx, "none")
}

func (c *goCases) noWebhook(ctx context.Context, id string) error {
	got, err := c.GetTaskPushConfig(ctx, &peer.GetTaskPushConfigRequest{TaskID: c.told.ID, ID: id})
	if !errors.Is(err, peer.ErrTaskNotFound) {
		return wrong("no such webhook", got, err)
	}
	return nil
}

func (c *goCases) pushList(ctx context.Context) error {
	got, err := c.ListTaskPushConfigs(ctx, &peer.ListTaskPushConfigRequest{TaskID: c.told.ID})
	if err != nil || len(got) != 2 || got[0].ID != "inline" || got[1].ID != "late" {
		return wrong("both webhooks", got, err)
	}
	return nil
}

func (c *goCases) pushDeliver(ctx context.Context) error {
	if err := c.release(ctx, "push"); err != nil {
		return err
	}
	for _, hook := range []*webhook{c.hook, c.late} {
		var s seen
		for !s.completed() {
			var d delivery
			select {
			case d = <-hook.told:
			case <-ctx.Done():
				return ctx.Err()
			}
			tokens := []string{d.header.Get("X-A2A-Notification-Token"), d.header.Get("A2A-Notification-Token")}
			if hook == c.hook && !slices.Equal(tokens, []string{"opaque-token", "opaque-token"}) {
				return wrong("the token in both spellings", d.header)
			}
			if hook == c.late && d.header.Get("Authorization") != "Bearer webhook-secret" {
				return wrong("the credentials", d.header)
			}
			if err := c.takeDelivery(&s, d); err != nil {
				return err
			}
		}
		hook.Close()
		last := []peer.TaskState{peer.TaskStateWorking, peer.TaskStateCompleted}
		if hook == c.hook && (s.text != "begun\nended\n" || !slices.Equal(s.states[max(0, len(s.states)-2):], last)) {
			return wrong("everything in order", s.text, s.states)
		}
	}
	return nil
}

// takeDelivery reads what a webhook was told: an event in 1.0, the task in 0.3.
func (c *goCases) takeDelivery(s *seen, d delivery) error {
	if c.version == "1.0" {
		var r peer.StreamResponse
		if err := json.Unmarshal(d.body, &r); err != nil {
			return wrong("an event", string(d.body), err)
		}
		s.take(r.Event)
		return nil
	}
	var old struct { // the SDK exports no reader of it
		Kind, ID  string
		Status    struct{ State string }
		Artifacts []struct {
			Name  string
			Parts []struct{ Text string }
		}
	}
	if err := json.Unmarshal(d.body, &old); err != nil || old.Kind != "task" || old.ID != string(c.told.ID) {
		return wrong("the task", string(d.body), err)
	}
	s.states = append(s.states, peer.TaskState("TASK_STATE_"+strings.ToUpper(old.Status.State)))
	s.text = ""
	for _, a := range old.Artifacts {
		if a.Name == "stdout" {
			for _, p := range a.Parts {
				s.text += p.Text
			}
		}
	}
	return nil
}

func (c *goCases) pushDelete(ctx context.Context) error {
	for range 2 { // it is idempotent
		if err := c.DeleteTaskPushConfig(ctx, &peer.DeleteTaskPushConfigRequest{TaskID: c.told.ID, ID: "late"}); err != nil {
			return err
		}
	}
	return c.noWebhook(ctx, "late")
}
