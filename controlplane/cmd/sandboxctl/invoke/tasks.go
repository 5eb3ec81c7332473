package invoke

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
)

const (
	pageSize = 100  // the most that a server gives at once (A2A 1.0, ListTasks)
	maxPages = 1000 // of a server whose list never ends
)

// TaskList is a list of tasks, newest first, as the server gives it; the pages
// it came in are put together.
type TaskList struct {
	Tasks []Task
	// More is true when there are tasks behind the last one.
	More bool
	// Raw are the tasks as they came.
	Raw []json.RawMessage
}

// Tasks lists tasks without their output, those in a state if one is given, at
// most as many as limit says if that is above 0.
func (c *Client) Tasks(ctx context.Context, state string, limit int) (TaskList, error) {
	list := TaskList{Tasks: []Task{}, Raw: []json.RawMessage{}}
	query := url.Values{}
	if state != "" {
		query.Set("status", state)
	}
	for range maxPages {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-len(list.Tasks))
		}
		query.Set("pageSize", strconv.Itoa(size))
		var page struct {
			Tasks []json.RawMessage `json:"tasks"`
			Next  string            `json:"nextPageToken"`
		}
		if _, err := c.document(ctx, http.MethodGet, "/tasks?"+query.Encode(), nil, &page); err != nil {
			return TaskList{}, err
		}
		for _, raw := range page.Tasks {
			if limit > 0 && len(list.Tasks) >= limit {
				list.More = true
				return list, nil
			}
			var t Task
			if err := json.Unmarshal(raw, &t); err != nil {
				return TaskList{}, errors.New("cannot parse answer: a task of the list is none")
			}
			list.Tasks, list.Raw = append(list.Tasks, t), append(list.Raw, raw)
		}
		if list.More = page.Next != ""; !list.More || (limit > 0 && len(list.Tasks) >= limit) {
			return list, nil
		}
		query.Set("pageToken", page.Next)
	}
	return TaskList{}, errors.New("the server's list has no end")
}
