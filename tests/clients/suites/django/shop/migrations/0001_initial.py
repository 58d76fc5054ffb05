import uuid

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Author",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(db_index=True, max_length=100)),
                ("born", models.DateField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Tag",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.SlugField(unique=True)),
            ],
        ),
        migrations.CreateModel(
            name="Book",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.UUIDField(default=uuid.uuid4, unique=True)),
                ("title", models.CharField(max_length=200)),
                ("price", models.DecimalField(decimal_places=2, default=0, max_digits=8)),
                ("added", models.DateTimeField(auto_now_add=True)),
                ("length", models.DurationField(null=True)),
                ("cover", models.BinaryField(null=True)),
                ("data", models.JSONField(default=dict)),
                ("author", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="books",
                                             to="shop.author")),
                ("tags", models.ManyToManyField(to="shop.tag")),
            ],
            options={
                "indexes": [models.Index(fields=["title", "price"], name="book_title_price")],
                "constraints": [
                    models.UniqueConstraint(fields=("title", "author"), name="book_unique"),
                    models.CheckConstraint(condition=models.Q(("price__gte", 0)), name="book_price"),
                ],
            },
        ),
    ]
